"""Everyday words of the languages written in Latin letters for which faker has none."""

from __future__ import annotations

WORDS: dict[str, str] = {
    "Portuguese": """
        o a os as um uma uns umas de do da dos das em no na nos nas por pelo pela para com sem sob sobre entre até
        desde e ou mas porém porque pois que quem qual quando onde como se também já ainda não nunca sempre muito
        muita pouco mais menos tão tudo nada todo toda todos todas cada outro outra mesmo mesma este esta esse essa
        aquele aquela isto isso eu tu ele ela nós vós eles elas meu minha teu tua seu sua nosso nossa lhe lhes me
        te nos é são era foi foram ser estar está estava estão ter tem têm tinha haver há houve fazer faz fez ir
        vai foi vir vem dizer diz disse dar deu ver viu saber sabe poder pode querer quer dever deve ficar ficou
        chegar chegou passar falar falou trabalhar viver comer beber dormir correr abrir fechar comprar vender
        perder encontrar começar acabar pensar sentir ouvir ler escrever ensinar aprender casa rua cidade vila
        campo mar rio monte céu sol lua chuva vento noite dia manhã tarde semana mês ano tempo hora homem mulher
        filho filha irmão irmã pai mãe avó avô criança menino menina amigo vizinho gente povo rei lei juiz pão
        vinho água leite queijo feijão arroz peixe carne fruta maçã laranja cebola batata sopa mesa cadeira porta
        janela cama chão parede livro carta escola igreja mercado loja trabalho dinheiro mão olho cabeça coração
        pé boca cabelo cão gato cavalo pássaro árvore flor folha pedra fogo luz cor branco preto vermelho verde
        azul grande pequeno novo velho bom boa mau bonito feio quente frio alto baixo longo curto forte fraco
        alegre triste cansado difícil fácil coração nação razão opinião educação direito dever liberdade justiça
        paz guerra medo vida morte verdade mentira amor ódio palavra voz história caminho viagem barco comboio
        carro ponte porto aldeia colheita trigo preço ontem hoje amanhã depois antes agora aqui ali longe perto
    """,
    "Hungarian": """
        a az egy és vagy de hogy ha mert mint aki ami amely akkor amikor ahol hol mikor miért hogyan ki mi ez az
        ezt azt itt ott most már még csak is sem nem soha mindig nagyon kevés sok több minden senki semmi valaki
        én te ő mi ti ők nekem neked neki velem vele nálunk van volt lesz voltak lenne legyen kell lehet tud akar
        szeret megy ment jön jött lát látott mond mondta ad adott vesz vett kap kapott él élt dolgozik eszik iszik
        alszik fut nyit zár vásárol elad veszít talál kezd gondol érez hall olvas ír tanít tanul ház utca város
        falu mező tenger folyó hegy ég nap hold eső szél éjszaka reggel este hét hónap év idő óra ember férfi nő
        fiú lány gyerek testvér apa anya nagymama nagyapa barát szomszéd nép király törvény bíró kenyér bor víz tej
        sajt bab rizs hal hús gyümölcs alma hagyma krumpli leves asztal szék ajtó ablak ágy fal könyv levél iskola
        templom piac bolt munka pénz kéz szem fej szív láb száj haj kutya macska ló madár fa virág kő tűz fény szín
        fehér fekete piros zöld kék nagy kicsi új régi jó rossz szép csúnya meleg hideg magas alacsony hosszú rövid
        erős gyenge vidám szomorú fáradt nehéz könnyű jog kötelesség szabadság igazság béke háború félelem élet
        halál szeretet szó hang történet út utazás hajó vonat autó híd kikötő aratás búza ár tegnap ma holnap
        után előtt között alatt fölött mellett nélkül szerint mögött felé miatt együtt lassan gyorsan korán későn
    """,
    "Turkish": """
        bir ve veya ama fakat çünkü eğer ile için gibi kadar sonra önce şimdi burada orada nerede ne zaman neden
        nasıl kim hangi bu şu o bunlar onlar ben sen biz siz benim senin onun bizim bana sana ona bize her hiç
        hep çok az daha en bütün bazı kimse şey değil yok var vardı olur oldu olacak olmak etmek yapmak yaptı
        gitmek gitti gelmek geldi görmek gördü demek dedi vermek verdi almak aldı bilmek biliyor istemek sevmek
        çalışmak yaşamak yemek içmek uyumak koşmak açmak kapamak satmak kaybetmek bulmak başlamak düşünmek
        duymak okumak yazmak öğretmek öğrenmek ev sokak şehir köy tarla deniz nehir dağ gök güneş ay yağmur
        rüzgar gece gün sabah akşam hafta yıl zaman saat adam kadın oğlan kız çocuk kardeş abla baba anne nine
        dede arkadaş komşu halk kral kanun hakim ekmek şarap su süt peynir fasulye pirinç balık et meyve elma
        soğan patates çorba masa sandalye kapı pencere yatak duvar kitap mektup okul cami pazar dükkan iş para
        el göz baş kalp ayak ağız saç köpek kedi at kuş ağaç çiçek yaprak taş ateş ışık renk beyaz siyah kırmızı
        yeşil mavi büyük küçük yeni eski iyi kötü güzel çirkin sıcak soğuk yüksek alçak uzun kısa güçlü zayıf
        neşeli üzgün yorgun zor kolay hak görev özgürlük adalet barış savaş korku hayat ölüm sevgi söz ses hikaye
        yol yolculuk gemi tren araba köprü liman hasat buğday fiyat dün bugün yarın altında üstünde yanında
        arkasında arasında olmadan göre doğru birlikte yavaş hızlı erken geç evde evden sokakta çocuklar insanlar
    """,
}
