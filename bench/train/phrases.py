"""How each language introduces an e-mail address, a telephone number and a card number."""

from __future__ import annotations

EMAIL: dict[str, tuple[str, ...]] = {
    "English": ("E-mail: {}", "write to {}", "my address is {}", "contact {} for details"),
    "French": ("E-mail : {}", "écrivez à {}", "mon adresse est {}", "contactez {} pour en savoir plus"),
    "German": ("E-Mail: {}", "schreiben Sie an {}", "meine Adresse ist {}", "Kontakt über {}"),
    "Spanish": ("Correo: {}", "escriba a {}", "mi dirección es {}", "contacte con {} para más detalles"),
    "Italian": ("E-mail: {}", "scrivi a {}", "il mio indirizzo è {}", "contatta {} per i dettagli"),
    "Portuguese": ("E-mail: {}", "escreva para {}", "meu endereço é {}", "contacte {} para mais detalhes"),
    "Dutch": ("E-mail: {}", "schrijf naar {}", "mijn adres is {}", "neem contact op via {}"),
    "Polish": ("E-mail: {}", "napisz na {}", "mój adres to {}", "kontakt: {}"),
    "Hungarian": ("E-mail: {}", "írjon ide: {}", "a címem {}", "kapcsolat: {}"),
    "Turkish": ("E-posta: {}", "{} adresine yazın", "adresim {}", "ayrıntılar için {}"),
    "Vietnamese": ("Email: {}", "viết thư đến {}", "địa chỉ của tôi là {}", "liên hệ {} để biết thêm"),
    "Russian": ("Почта: {}", "пишите на {}", "мой адрес {}", "подробности по адресу {}"),
    "Greek": ("Email: {}", "γράψτε στο {}", "η διεύθυνσή μου είναι {}", "επικοινωνία: {}"),
    "Arabic": ("البريد: {}", "اكتب إلى {}", "عنواني هو {}", "للتفاصيل {}"),
    "Hebrew": ("דואל: {}", "כתבו אל {}", "הכתובת שלי היא {}", "לפרטים {}"),
    "Hindi": ("ईमेल: {}", "{} पर लिखें", "मेरा पता {} है", "संपर्क: {}"),
    "Thai": ("อีเมล: {}", "เขียนถึง {}", "ที่อยู่ของฉันคือ {}", "ติดต่อ {}"),
    "Chinese": ("邮箱：{}", "请写信到{}", "我的地址是{}", "詳情請聯絡 {}"),
    "Japanese": ("メール：{}", "{}までご連絡ください", "アドレスは{}です", "詳細は {} へ"),
    "Korean": ("이메일: {}", "{}로 보내세요", "제 주소는 {}입니다", "문의 {}"),
}

PHONE: dict[str, tuple[str, ...]] = {
    "English": ("Phone: {}", "call {}", "my number is {}", "or text {} today"),
    "French": ("Tél. : {}", "appelez le {}", "mon numéro est le {}", "ou par SMS au {}"),
    "German": ("Tel.: {}", "rufen Sie {} an", "meine Nummer ist {}", "oder mobil unter {}"),
    "Spanish": ("Tel.: {}", "llame al {}", "mi número es el {}", "o por móvil al {}"),
    "Italian": ("Tel.: {}", "chiama il {}", "il mio numero è {}", "o al cellulare {}"),
    "Portuguese": ("Tel.: {}", "ligue para {}", "meu número é {}", "ou pelo telemóvel {}"),
    "Dutch": ("Tel.: {}", "bel {}", "mijn nummer is {}", "of mobiel op {}"),
    "Polish": ("Tel.: {}", "zadzwoń pod {}", "mój numer to {}", "lub komórka {}"),
    "Hungarian": ("Tel.: {}", "hívja a {} számot", "a számom {}", "vagy mobilon: {}"),
    "Turkish": ("Tel.: {}", "{} numarasını arayın", "numaram {}", "ya da cep: {}"),
    "Vietnamese": ("ĐT: {}", "gọi {}", "số của tôi là {}", "hoặc nhắn tin {}"),
    "Russian": ("Тел.: {}", "звоните {}", "мой номер {}", "или на мобильный {}"),
    "Greek": ("Τηλ.: {}", "καλέστε το {}", "ο αριθμός μου είναι {}", "ή στο κινητό {}"),
    "Arabic": ("هاتف: {}", "اتصل على {}", "رقمي هو {}", "أو الجوال {}"),
    "Hebrew": ("טל: {}", "התקשרו אל {}", "המספר שלי הוא {}", "או בנייד {}"),
    "Hindi": ("फ़ोन: {}", "{} पर कॉल करें", "मेरा नंबर {} है", "मोबाइल {}"),
    "Thai": ("โทร {}", "โทรหา {}", "เบอร์ของฉันคือ {}", "มือถือ {}"),
    "Chinese": ("电话：{}", "请拨打{}", "我的号码是{}", "手機 {}"),
    "Japanese": ("電話：{}", "{}までお電話ください", "番号は{}です", "携帯 {}"),
    "Korean": ("전화: {}", "{}로 전화하세요", "제 번호는 {}입니다", "휴대폰 {}"),
}

CARD: dict[str, tuple[str, ...]] = {
    "English": ("Card number: {}", "paid with card {}", "my credit card is {}"),
    "French": ("Numéro de carte : {}", "payé avec la carte {}", "ma carte est la {}"),
    "German": ("Kartennummer: {}", "bezahlt mit Karte {}", "meine Karte hat {}"),
    "Spanish": ("Número de tarjeta: {}", "pagado con la tarjeta {}", "mi tarjeta es {}"),
    "Italian": ("Numero di carta: {}", "pagato con carta {}", "la mia carta è {}"),
    "Portuguese": ("Número do cartão: {}", "pago com o cartão {}", "meu cartão é {}"),
    "Dutch": ("Kaartnummer: {}", "betaald met kaart {}", "mijn kaart is {}"),
    "Polish": ("Numer karty: {}", "zapłacono kartą {}", "moja karta to {}"),
    "Hungarian": ("Kártyaszám: {}", "fizetve a {} kártyával", "a kártyám {}"),
    "Turkish": ("Kart numarası: {}", "{} kartıyla ödendi", "kartım {}"),
    "Vietnamese": ("Số thẻ: {}", "trả bằng thẻ {}", "thẻ của tôi là {}"),
    "Russian": ("Номер карты: {}", "оплачено картой {}", "моя карта {}"),
    "Greek": ("Αριθμός κάρτας: {}", "πληρωμή με κάρτα {}", "η κάρτα μου είναι {}"),
    "Arabic": ("رقم البطاقة: {}", "الدفع بالبطاقة {}", "بطاقتي {}"),
    "Hebrew": ("מספר כרטיס: {}", "שולם בכרטיס {}", "הכרטיס שלי {}"),
    "Hindi": ("कार्ड नंबर: {}", "कार्ड {} से भुगतान", "मेरा कार्ड {}"),
    "Thai": ("หมายเลขบัตร: {}", "จ่ายด้วยบัตร {}", "บัตรของฉัน {}"),
    "Chinese": ("卡号：{}", "用卡{}支付", "信用卡號 {}"),
    "Japanese": ("カード番号：{}", "カード{}で支払い", "カードは{}"),
    "Korean": ("카드 번호: {}", "카드 {}로 결제", "제 카드는 {}"),
}

RUBRIC = (
    "You read one short text and answer questions about it. Judge only what is written in the text itself. "
    "Language: the language that most of its words belong to; names of people and places, addresses and "
    "numbers do not count. Personal data: an e-mail address, a telephone number or a card number, in whatever "
    "way it is written, with or without spaces, dots or dashes. Dates, years, prices, times, amounts, versions "
    "and page numbers are not personal data, and neither is the address of a web site, the name of a city or "
    "a text that only talks about telephones or e-mail. When you find nothing of the kind, the answer is no. "
    "Answer with one of the options and with nothing else."
)
RUBRICS = (
    "Read the text and answer the question about it.",
    "Answer questions about the text below. Choose one of the options.",
    "You check messages before they are published. Say which language a message is written in and whether it "
    "contains personal data: e-mail addresses, telephone numbers, card numbers.",
    "Personal data means an e-mail address, a phone number or a payment card number. Dates, prices and times "
    "are no personal data. The language of a text is the language of most of its words.",
    "Classify the following message. Use only the given options, answer with one word.",
)
LANGUAGE_QUESTIONS = (
    "Which language is it?",
    "Which language is it in?",
    "What language is the text written in?",
    "Which language is this?",
    "In which language is the text?",
    "Language of the text?",
)
DATA_QUESTIONS = (
    "Does it contain personal data?",
    "Does the text contain personal data?",
    "Is there personal data in it?",
    "Does it contain an e-mail address, a telephone number or a card number?",
    "Personal data?",
    "Are there any contact details or card numbers in the text?",
)
KIND_QUESTIONS = ("Which kind of personal data does it contain?", "What personal data is there?")
KINDS = {"email": "e-mail address", "phone": "telephone number", "card": "card number", "": "none"}
IN_LANGUAGE_QUESTIONS = ("Is it in {}?", "Is it written in {}?", "Is the text in {}?")
