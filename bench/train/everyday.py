"""Everyday sentences, one a line, written for this model, in the languages where the catalogues have none.

Catalogues of translations speak of settings and permissions; people write about shops, weather and dinner. The file
is one list of data, and so it is longer than a file of code.
"""

from __future__ import annotations

SENTENCES: dict[str, str] = {
    "English": """
        I forgot my umbrella at the office again, so I got soaked on the way home.
        Could you pick up some milk and a loaf of bread after work?
        The kids are already asleep, so please keep the music down.
        We had dinner at the new Italian place around the corner and it was surprisingly cheap.
        My sister is getting married next spring and I still don't know what to wear.
        The bus was twenty minutes late this morning, as usual.
        It has been raining since Monday and the garden looks like a lake.
        What time does the swimming pool close on Sundays?
        I bought these shoes in the sale for $39 and they already have a hole.
        He makes the best apple pie I have ever eaten.
        Don't worry about the dishes, I'll wash them tomorrow.
        The washing machine makes a strange noise whenever it spins.
        Our neighbours are painting their house bright yellow, of all colours.
        She has two cats, an old dog and far too many plants.
        Let's meet in front of the cinema at half past seven.
        I'm not sure whether I like the ending of that film.
        The train to Manchester leaves from platform 4 in ten minutes.
        Is there a pharmacy near here that is open at night?
        They moved to a smaller flat because the rent had gone up by 15%.
        My phone battery hardly lasts until lunch these days.
        The meeting was moved to Thursday, 14 March, at 10:30.
        You can leave the keys with the woman downstairs.
        Nobody told me that the shop would be shut today.
        He learned to play the guitar when he was sixty.
        There is some soup left in the fridge if you are hungry.
        I think we should take the earlier flight and sleep at the hotel.
        The teacher gave us so much homework that I was up until midnight.
        Have you ever been to the market behind the station?
        It was so cold last night that the pipes froze.
        My grandfather worked as a baker for more than forty years.
        The coffee here is good, but the chairs are awful.
        We ran out of petrol in the middle of nowhere.
        Can I bring a friend to your party on Saturday?
        The doctor said that I should walk more and sit less.
        Our daughter starts school in September and she can hardly wait.
        The soup needs a bit more salt and some pepper.
        I read the whole book on the train and cried at the end.
        Somebody left a blue jacket on the chair by the window.
        The new bridge will save us half an hour every day.
        How much are the tomatoes, and are they from around here?
        He always says that he will call, and then he never does.
        We spent the weekend by the sea and did nothing at all.
        The lift is out of order, so we had to carry the sofa up the stairs.
        I would rather have tea, if that's all right with you.
        The boys played football in the park until it was dark.
        This laptop is six years old and it still works fine.
        Please turn off the lights and lock the door when you go.
        The museum is free for students on the first Friday of the month.
        I was born in a small town where everybody knows everybody.
        She told me a funny story about her first day at work.
        There were so many people on the beach that we went home again.
        The bread is still warm, so wait a little before you cut it.
        He broke his arm while skiing and can't drive for six weeks.
        Which of these two jackets do you like better?
        The heating is broken and the landlord does not answer.
        I've been learning German for two years and I still make mistakes all the time.
        Tickets cost 12 pounds, and children under five get in for nothing.
        The old man next door feeds the birds every morning.
        My boss wants the report by the end of the week.
        We walked along the river and had an ice cream.
        It looks as if it is going to snow tonight.
        The printer has run out of paper again.
        I don't eat meat, but I'd love some of that cheese.
        The band played for three hours and nobody wanted to leave.
        Her brother lives in Canada and comes home once a year.
        Would you mind opening the window a little?
        The road is closed because a tree fell down in the storm.
        I can't find my glasses anywhere, have you seen them?
        The hotel was clean and quiet, and breakfast was included.
        He sold his car and goes everywhere by bike now.
        The first thing I do in the morning is make a cup of tea.
        We should book a table, it gets very busy there in summer.
        My parents have been married for thirty years today.
        The baby slept through the night for the first time.
        Are you coming with us or do you want to stay at home?
        The film starts at eight, but there are always a lot of adverts.
        That was the worst pizza I have had in my life.
        I'll send you the pictures from the trip as soon as I get home.
        The wind blew all the washing into the neighbour's garden.
        You need two eggs, a cup of sugar and 200 grams of flour.
        She works at the hospital and often has to do night shifts.
        The internet has been down since this morning.
        I grew up on a farm with cows, sheep and a very angry goose.
        They say that the winter will be long and cold this year.
        It took me three hours to put the wardrobe together.
        Why didn't you tell me that you were feeling ill?
        The cat jumped on the table and ate all the ham.
        We are looking for somebody who can help in the kitchen on weekends.
        The children built a house out of old boxes.
        I like my job, but the way there is far too long.
        Thanks for the lovely evening, we had a great time.
        The bakery on the corner opens at six in the morning.
        He is always late, so tell him to come half an hour earlier.
        This soup is too hot, let it cool down first.
        The game was cancelled because the field was under water.
        I lost my wallet on the way to work, but a student found it.
        She wants to be a vet because she loves animals.
        The stairs are wet, so be careful.
        We've got enough chairs for everyone, but not enough plates.
        Last year we drove all the way to Scotland in an old van.
        My back hurts from sitting at the computer all day.
        The apples from our own tree are small, but they taste much better.
        He said yes straight away, which surprised all of us.
        I have to get up at five tomorrow, so I'm going to bed.
        The shop around the corner sells bread, stamps and fresh flowers.
        It's only a short walk from the station to our house.
        The water in the lake was warm enough to swim until October.
        Did you remember to feed the fish while we were away?
        The course starts in January and there are still a few places left.
        Everyone in the class got the same question wrong.
        I prefer the old version of the app, it was much simpler.
        A good pair of boots is worth the money if you walk a lot.
        The street was full of music and lights, and people danced until morning.
        My aunt knits a pair of socks for each of us every Christmas.
        We waited for an hour and then simply went home.
        The soup of the day is pea, and it comes with bread and butter.
        He drives a bus in the city and knows every street by heart.
        That's all we know so far.
        See you tomorrow at the usual place.
        The room upstairs is small but bright, and in the evening one can see the hills from there.
    """,
    "Portuguese": """
        Esqueci o guarda-chuva no escritório e cheguei a casa todo molhado.
        Você pode comprar leite e pão depois do trabalho?
        As crianças já estão a dormir, por isso baixa a música.
        A gente jantou no restaurante novo da esquina e não foi nada caro.
        A minha irmã casa-se na primavera e eu ainda não sei o que vestir.
        O ônibus atrasou vinte minutos hoje de manhã, como sempre.
        Está a chover desde segunda-feira e o jardim parece um lago.
        A que horas fecha a piscina aos domingos?
        Comprei estes sapatos na promoção por 39 euros e já têm um buraco.
        Ele faz o melhor bolo de maçã que eu já comi.
        Não se preocupe com a louça, eu lavo amanhã.
        A máquina de lavar faz um barulho estranho.
        Os nossos vizinhos estão a pintar a casa de amarelo.
        Ela tem dois gatos, um cachorro velho e plantas demais.
        Vamos nos encontrar em frente ao cinema às sete e meia.
        Não sei se gostei do final daquele filme.
        O comboio para o Porto parte da linha 4 daqui a dez minutos.
        Há alguma farmácia aqui perto que esteja aberta à noite?
        Eles mudaram para um apartamento menor porque o aluguel subiu 15%.
        A bateria do meu celular mal dura até o almoço.
        A reunião passou para quinta-feira, 14 de março, às 10h30.
        Pode deixar as chaves com a senhora do rés-do-chão.
        Ninguém me disse que a loja estaria fechada hoje.
        O meu avô aprendeu a tocar viola aos sessenta anos.
        Ainda há sopa no frigorífico, se tiveres fome.
        Acho que devíamos apanhar o voo mais cedo e dormir no hotel.
        O professor passou tanta lição que fiquei acordado até meia-noite.
        Já foste à feira atrás da estação?
        Fez tanto frio ontem à noite que a água gelou nos canos.
        O meu avô foi padeiro durante mais de quarenta anos.
        O café daqui é bom, mas as cadeiras são péssimas.
        Ficamos sem gasolina no meio do nada.
        Posso levar um amigo à tua festa no sábado?
        O médico disse que eu deveria andar mais e ficar menos tempo sentado.
        A nossa filha entra na escola em setembro e não pensa noutra coisa.
        Falta um pouco de sal no feijão.
        Li o livro inteiro no avião e chorei no fim.
        Alguém deixou um casaco azul na cadeira junto à janela.
        A ponte nova vai poupar-nos meia hora por dia.
        Quanto custam os tomates? São daqui da região?
        Ele diz sempre que vai ligar e depois nunca liga.
        Passamos o fim de semana na praia sem fazer nada.
        O elevador está avariado e tivemos de levar o sofá pelas escadas.
        Eu prefiro um chá, se não for incômodo.
        Os meninos jogaram bola no parque até escurecer.
        Este computador tem seis anos e ainda funciona muito bem.
        Apague as luzes e tranque a porta quando sair, por favor.
        O museu é gratuito para estudantes na primeira sexta-feira do mês.
        Nasci numa aldeia onde toda a gente se conhece.
        Ela me contou uma história engraçada sobre o primeiro dia no emprego.
        Havia tanta gente na praia que voltamos para casa.
        O pão ainda está quente, espera um bocadinho antes de o cortar.
        Ele partiu o braço e não pode conduzir durante seis semanas.
        De qual dessas duas blusas você gosta mais?
        O aquecimento não funciona e o senhorio não responde.
        Estudo alemão há dois anos e ainda erro muito.
        Os bilhetes custam 12 euros e as crianças não pagam.
        O velhote do lado dá de comer aos pássaros todas as manhãs.
        O meu chefe quer o relatório até ao fim da semana.
        Caminhamos à beira do rio e tomamos um sorvete.
        Parece que vai trovejar esta noite.
        A impressora ficou outra vez sem papel.
        Não como carne, mas adoro queijo fresco com marmelada.
        A banda tocou três horas e ninguém queria ir embora.
        O irmão dela mora no Canadá e vem uma vez por ano.
        Você se importa de abrir um pouco a janela?
        A estrada está cortada porque caiu uma árvore com o temporal.
        Não encontro os meus óculos em lado nenhum, viste-os?
        O hotel era limpo e sossegado, com o pequeno-almoço incluído.
        Ele vendeu o carro e agora vai de bicicleta para todo lado.
        A primeira coisa que faço de manhã é passar um café.
        É melhor reservar mesa, no verão está sempre cheio.
        Os meus pais fazem hoje trinta anos de casados.
        O bebé dormiu a noite inteira pela primeira vez.
        Vens connosco ou preferes ficar em casa?
        Foi a pior pizza que comi na vida.
        Mando as fotos da viagem assim que chegar em casa.
        O vento levou a roupa toda para o quintal do vizinho.
        São precisos dois ovos, uma chávena de açúcar e 200 gramas de farinha.
        Ela trabalha no hospital e muitas vezes faz o turno da noite.
        Estamos sem internet desde hoje cedo.
        Cresci numa quinta com vacas, ovelhas e um ganso muito zangado.
        Demorei três horas para montar o guarda-roupa.
        Por que você não me disse que estava doente?
        O gato saltou para a mesa e comeu o fiambre todo.
        Gosto do meu trabalho, mas a viagem é longa demais.
        Obrigado pela noite maravilhosa, a gente se divertiu muito.
        A padaria da esquina abre às seis da manhã e o pão acaba cedo.
        O jogo foi cancelado porque o campo estava alagado.
        Perdi a carteira a caminho do trabalho, mas um estudante encontrou-a.
        Cuidado, que as escadas estão molhadas.
        No ano passado fomos até à Galiza numa carrinha velha.
        As minhas costas doem de tanto ficar sentada à frente do computador.
        Amanhã tenho de me levantar às cinco, vou já para a cama.
        O curso começa em janeiro e ainda há vagas.
        O quarto de cima é pequeno mas tem muita luz, e à tarde veem-se os montes.
    """,
    "Italian": """
        Ho dimenticato l'ombrello in ufficio e sono tornato a casa tutto bagnato.
        Puoi comprare il latte e il pane dopo il lavoro?
        I bambini dormono già, quindi abbassa la musica.
        Abbiamo cenato nel ristorante nuovo all'angolo e abbiamo speso poco.
        Mia sorella si sposa in primavera e non so ancora cosa mettermi.
        L'autobus stamattina aveva venti minuti di ritardo, come al solito.
        Piove da lunedì e il giardino sembra un lago.
        A che ora chiude la piscina la domenica?
        Ho preso queste scarpe in saldo a 39 euro e hanno già un buco.
        Mia nonna fa la torta di mele più buona del mondo.
        Lascia stare i piatti, li lavo io domani.
        La lavatrice fa uno strano rumore quando gira.
        I vicini stanno dipingendo la casa di giallo.
        Lei ha due gatti, un vecchio cane e troppe piante.
        Ci vediamo davanti al cinema alle sette e mezza.
        Il treno per Bologna parte dal binario 4 fra dieci minuti.
        C'è una farmacia qui vicino aperta anche di notte?
        Si sono trasferiti in un appartamento più piccolo perché l'affitto era aumentato.
        La batteria del mio telefono non arriva nemmeno a pranzo.
        La riunione è stata spostata a giovedì 14 marzo alle 10.30.
        Nessuno mi ha detto che oggi il negozio era chiuso.
        In frigo c'è ancora un po' di minestra, se hai fame.
        Secondo me dovremmo prendere il volo prima e dormire in albergo.
        La maestra ci ha dato tantissimi compiti per domani.
        Ieri notte ha fatto così freddo che si sono gelati i tubi.
        Mio nonno ha fatto il fornaio per più di quarant'anni.
        Il caffè qui è buono, ma le sedie sono scomode.
        Posso portare un amico alla tua festa sabato?
        Il medico dice che devo camminare di più.
        Nella zuppa manca un pizzico di sale.
        Quanto costano i pomodori? Sono di queste parti?
        Dice sempre che chiama, e poi non lo fa mai.
        Abbiamo passato il fine settimana al mare senza fare niente.
        L'ascensore è rotto e abbiamo portato il divano su per le scale.
        Quando esci spegni la luce e chiudi a chiave, per favore.
        Sono nato in un paesino dove si conoscono tutti.
        Quale di queste due giacche ti piace di più?
        Studio tedesco da due anni e faccio ancora un sacco di errori.
        I biglietti costano 12 euro, i bambini non pagano.
        Il mio capo vuole la relazione entro venerdì.
        Pare che stanotte nevichi anche in pianura.
        Non trovo più gli occhiali, li hai visti da qualche parte?
        Ha venduto la macchina e adesso va dappertutto in bicicletta.
        Vieni con noi o preferisci restare a casa?
        Il gatto è saltato sul tavolo e si è mangiato tutto il prosciutto.
        Il mio lavoro mi piace, ma ci metto un'ora ad arrivare.
        La camera di sopra è piccola ma luminosa, e la sera si vedono le colline.
        Che bella serata, grazie di tutto!
    """,
    "Spanish": """
        Me dejé el paraguas en la oficina y llegué a casa empapado.
        ¿Puedes comprar leche y pan cuando salgas del trabajo?
        Los niños ya están dormidos, así que baja la música.
        Cenamos en el restaurante nuevo de la esquina y nos salió muy barato.
        Mi hermana se casa en primavera y todavía no sé qué ponerme.
        El autobús llegó veinte minutos tarde, como siempre.
        Llueve desde el lunes y el jardín parece un lago.
        ¿A qué hora cierra la piscina los domingos?
        Compré estos zapatos en las rebajas por 39 euros y ya tienen un agujero.
        Mi abuela hace la mejor tarta de manzana del pueblo.
        Deja los platos, ya los lavo yo mañana.
        La lavadora hace un ruido muy raro.
        Los vecinos están pintando la casa de amarillo.
        Ella tiene dos gatos, un perro viejo y demasiadas plantas.
        Nos vemos delante del cine a las siete y media.
        El tren a Sevilla sale de la vía 4 dentro de diez minutos.
        ¿Hay por aquí alguna farmacia que abra de noche?
        Se mudaron a un piso más pequeño porque les subieron el alquiler.
        La batería del móvil no me dura ni hasta la comida.
        La reunión se ha pasado al jueves 14 de marzo a las 10:30.
        Nadie me dijo que hoy la tienda estaba cerrada.
        Todavía queda sopa en la nevera, por si tienes hambre.
        Creo que deberíamos tomar el vuelo anterior y dormir en el hotel.
        El profesor nos mandó muchísimos deberes para mañana.
        Anoche hizo tanto frío que se helaron las tuberías.
        Mi abuelo fue panadero más de cuarenta años.
        Aquí el café es bueno, pero las sillas son incómodas.
        ¿Puedo llevar a un amigo a tu fiesta el sábado?
        El médico me ha dicho que camine más.
        A las lentejas les falta un poco de sal.
        ¿Cuánto cuestan los tomates? ¿Son de la zona?
        Siempre dice que va a llamar y luego nunca llama.
        Pasamos el fin de semana en la playa sin hacer nada.
        El ascensor no funciona y tuvimos que subir el sofá por la escalera.
        Apaga la luz y cierra con llave cuando te vayas, por favor.
        Nací en un pueblo pequeño donde todos se conocen.
        ¿Cuál de estas dos chaquetas te gusta más?
        Llevo dos años estudiando alemán y aún cometo muchos errores.
        Las entradas cuestan 12 euros y los niños entran gratis.
        Mi jefa quiere el informe antes del viernes.
        Parece que esta noche va a nevar.
        No encuentro mis gafas por ningún lado, ¿las has visto?
        Vendió el coche y ahora va a todas partes en bicicleta.
        El gato se subió a la mesa y se comió todo el jamón.
        Me gusta mi trabajo, pero está demasiado lejos de casa.
        La habitación de arriba es pequeña pero tiene mucha luz.
    """,
    "Dutch": """
        Ik heb mijn paraplu weer op kantoor laten liggen en kwam kletsnat thuis.
        Kun jij na het werk even melk en brood halen?
        De kinderen slapen al, dus zet de muziek wat zachter.
        We hebben bij dat nieuwe restaurant op de hoek gegeten en het was niet duur.
        Mijn zus trouwt in het voorjaar en ik weet nog niet wat ik aan moet.
        De bus was vanochtend weer twintig minuten te laat.
        Het regent al sinds maandag en de tuin lijkt wel een meer.
        Hoe laat gaat het zwembad op zondag dicht?
        Ik heb deze schoenen in de uitverkoop gekocht voor 39 euro.
        Oma bakt de lekkerste appeltaart die er is.
        Laat de afwas maar staan, die doe ik morgen wel.
        De wasmachine maakt een raar geluid.
        Onze buren schilderen hun huis knalgeel.
        Ze heeft twee katten, een oude hond en veel te veel planten.
        We spreken om half acht voor de bioscoop af.
        De trein naar Zwolle vertrekt over tien minuten van spoor 4.
        Is er hier ergens een apotheek die 's nachts open is?
        Ze zijn kleiner gaan wonen omdat de huur omhoog ging.
        De batterij van mijn telefoon is voor de lunch al leeg.
        De vergadering is verplaatst naar donderdag 14 maart om 10.30 uur.
        Niemand had me verteld dat de winkel vandaag gesloten was.
        Er staat nog soep in de koelkast als je honger hebt.
        Volgens mij kunnen we beter een vlucht eerder nemen.
        De juf heeft ons heel veel huiswerk gegeven.
        Het was vannacht zo koud dat de leidingen bevroren zijn.
        Mijn opa is meer dan veertig jaar bakker geweest.
        De koffie is hier goed, maar de stoelen zitten slecht.
        Mag ik zaterdag een vriend meenemen naar je feestje?
        De dokter zei dat ik meer moet wandelen.
        Er moet nog een beetje zout bij de soep.
        Wat kosten de tomaten, en komen ze hier uit de buurt?
        Hij zegt altijd dat hij zal bellen, maar hij doet het nooit.
        We waren het weekend aan zee en hebben niets gedaan.
        De lift is kapot, dus we moesten de bank de trap op dragen.
        Doe het licht uit en de deur op slot als je weggaat.
        Welke van deze twee jassen vind je mooier?
        Kaartjes kosten 12 euro en kinderen mogen gratis naar binnen.
        Mijn baas wil het verslag voor vrijdag hebben.
        Het ziet ernaar uit dat het vannacht gaat sneeuwen.
        Ik kan mijn bril nergens vinden, heb jij hem gezien?
        Hij heeft zijn auto verkocht en doet nu alles op de fiets.
        De kat sprong op tafel en at alle ham op.
        De kamer boven is klein maar licht, en 's avonds zie je de heuvels.
        Gaan jullie mee of blijven jullie liever thuis?
    """,
    "French": """
        J'ai encore oublié mon parapluie au bureau et je suis rentré trempé.
        Tu peux acheter du lait et du pain en sortant du travail ?
        Les enfants dorment déjà, alors baisse un peu la musique.
        On a dîné dans le nouveau restaurant du coin et ce n'était pas cher.
        Ma sœur se marie au printemps et je ne sais toujours pas quoi mettre.
        Le bus avait vingt minutes de retard ce matin, comme d'habitude.
        Il pleut depuis lundi et le jardin ressemble à un lac.
        À quelle heure ferme la piscine le dimanche ?
        J'ai acheté ces chaussures en solde à 39 euros.
        Ma grand-mère fait la meilleure tarte aux pommes du village.
        Laisse la vaisselle, je la ferai demain.
        La machine à laver fait un drôle de bruit.
        Nos voisins repeignent leur maison en jaune vif.
        Elle a deux chats, un vieux chien et beaucoup trop de plantes.
        On se retrouve devant le cinéma à sept heures et demie.
        Le train pour Lyon part de la voie 4 dans dix minutes.
        Est-ce qu'il y a une pharmacie ouverte la nuit par ici ?
        Ils ont déménagé parce que le loyer avait encore augmenté.
        La batterie de mon téléphone ne tient même pas jusqu'à midi.
        La réunion est reportée au jeudi 14 mars à 10 h 30.
        Personne ne m'avait dit que le magasin était fermé aujourd'hui.
        Il reste de la soupe au frigo si tu as faim.
        Je crois qu'on devrait prendre le vol d'avant et dormir à l'hôtel.
        La maîtresse nous a donné beaucoup de devoirs.
        Il a fait si froid cette nuit que les tuyaux ont gelé.
        Mon grand-père a été boulanger pendant plus de quarante ans.
        Le café est bon ici, mais les chaises sont affreuses.
        Je peux venir avec un ami à ta fête samedi ?
        Le médecin m'a dit de marcher davantage.
        Il manque un peu de sel dans la sauce.
        Combien coûtent les tomates, et d'où viennent-elles ?
        Il dit toujours qu'il va appeler et il ne le fait jamais.
        Nous avons passé le week-end à la mer sans rien faire.
        L'ascenseur est en panne, il a fallu monter le canapé à pied.
        Éteins la lumière et ferme à clé quand tu pars.
        Laquelle de ces deux vestes préfères-tu ?
        Les billets coûtent 12 euros et c'est gratuit pour les petits.
        Ma chef veut le rapport avant vendredi.
        On dirait qu'il va neiger cette nuit.
        Je ne trouve plus mes lunettes, tu ne les as pas vues ?
        Il a vendu sa voiture et fait tout à vélo maintenant.
        Le chat a sauté sur la table et a mangé tout le jambon.
        La chambre du haut est petite mais claire, et le soir on voit les collines.
        Tu viens avec nous ou tu préfères rester à la maison ?
    """,
    "German": """
        Ich habe meinen Schirm wieder im Büro vergessen und bin klatschnass geworden.
        Kannst du nach der Arbeit noch Milch und Brot mitbringen?
        Die Kinder schlafen schon, mach bitte die Musik leiser.
        Wir waren beim neuen Italiener um die Ecke essen, und es war gar nicht teuer.
        Meine Schwester heiratet im Frühling, und ich habe noch nichts anzuziehen.
        Der Bus kam heute früh wieder zwanzig Minuten zu spät.
        Seit Montag regnet es, und der Garten sieht aus wie ein See.
        Wann macht das Schwimmbad sonntags zu?
        Die Schuhe habe ich im Ausverkauf für 39 Euro gekauft.
        Oma backt den besten Apfelkuchen der Welt.
        Lass das Geschirr stehen, ich spüle morgen.
        Die Waschmaschine macht ein komisches Geräusch.
        Unsere Nachbarn streichen ihr Haus knallgelb.
        Sie hat zwei Katzen, einen alten Hund und viel zu viele Pflanzen.
        Wir treffen uns um halb acht vor dem Kino.
        Der Zug nach Kassel fährt in zehn Minuten von Gleis 4 ab.
        Gibt es hier eine Apotheke, die nachts offen hat?
        Sie sind umgezogen, weil die Miete schon wieder gestiegen ist.
        Der Akku von meinem Handy hält kaum bis mittags.
        Die Besprechung ist jetzt am Donnerstag, dem 14. März, um 10.30 Uhr.
        Keiner hat mir gesagt, dass der Laden heute zu hat.
        Im Kühlschrank ist noch Suppe, falls du Hunger hast.
        Ich glaube, wir sollten einen Flug früher nehmen.
        Die Lehrerin hat uns viel zu viele Hausaufgaben gegeben.
        Heute Nacht war es so kalt, dass die Rohre eingefroren sind.
        Mein Opa war über vierzig Jahre lang Bäcker.
        Der Kaffee ist gut hier, aber die Stühle sind furchtbar.
        Darf ich am Samstag einen Freund mitbringen?
        Der Arzt sagt, ich soll mehr zu Fuß gehen.
        In die Soße gehört noch etwas Salz.
        Was kosten die Tomaten, und sind die von hier?
        Er sagt immer, dass er sich meldet, und dann tut er es nie.
        Am Wochenende waren wir am Meer und haben gar nichts gemacht.
        Der Aufzug ist kaputt, wir mussten das Sofa die Treppe hochtragen.
        Mach bitte das Licht aus und schließ ab, wenn du gehst.
        Welche von den beiden Jacken gefällt dir besser?
        Karten kosten 12 Euro, Kinder kommen umsonst rein.
        Meine Chefin will den Bericht bis Freitag haben.
        Es sieht so aus, als würde es heute Nacht schneien.
        Ich finde meine Brille nicht, hast du sie gesehen?
        Er hat sein Auto verkauft und fährt nur noch Rad.
        Die Katze ist auf den Tisch gesprungen und hat den Schinken gefressen.
        Das Zimmer oben ist klein, aber hell, und abends sieht man die Hügel.
    """,
    "Polish": """
        Znowu zostawiłem parasol w biurze i wróciłem do domu cały mokry.
        Możesz po pracy kupić mleko i chleb?
        Dzieci już śpią, więc ścisz trochę muzykę.
        Zjedliśmy kolację w nowej restauracji na rogu i wcale nie było drogo.
        Moja siostra wychodzi za mąż na wiosnę, a ja nie mam co na siebie włożyć.
        Autobus znów się spóźnił dwadzieścia minut.
        Pada od poniedziałku i ogród wygląda jak jezioro.
        O której zamykają basen w niedzielę?
        Kupiłam te buty na wyprzedaży za 139 zł i już mają dziurę.
        Babcia piecze najlepszą szarlotkę na świecie.
        Zostaw naczynia, jutro pozmywam.
        Pralka wydaje jakiś dziwny dźwięk.
        Nasi sąsiedzi malują dom na żółto.
        Ona ma dwa koty, starego psa i za dużo kwiatów.
        Spotkajmy się przed kinem o wpół do ósmej.
        Pociąg do Lublina odjeżdża za dziesięć minut z peronu czwartego.
        Czy jest tu gdzieś apteka otwarta w nocy?
        Przeprowadzili się, bo czynsz znowu poszedł w górę.
        Bateria w moim telefonie ledwo wytrzymuje do obiadu.
        Zebranie przełożono na czwartek 14 marca na 10.30.
        Nikt mi nie powiedział, że sklep jest dziś zamknięty.
        W lodówce jest jeszcze zupa, jeśli jesteś głodny.
        Myślę, że powinniśmy polecieć wcześniej i przenocować w hotelu.
        Pani zadała nam strasznie dużo na jutro.
        W nocy było tak zimno, że zamarzły rury.
        Mój dziadek był piekarzem ponad czterdzieści lat.
        Kawa jest tu dobra, ale krzesła okropne.
        Czy mogę w sobotę przyjść z kolegą?
        Lekarz mówi, że mam więcej chodzić.
        Do tej zupy trzeba dodać trochę soli.
        Po ile są pomidory i skąd pochodzą?
        Zawsze mówi, że zadzwoni, a potem nie dzwoni.
        Spędziliśmy weekend nad morzem i nic nie robiliśmy.
        Winda nie działa, musieliśmy wnieść kanapę po schodach.
        Zgaś światło i zamknij drzwi, kiedy będziesz wychodzić.
        Która z tych kurtek bardziej ci się podoba?
        Bilety kosztują 25 zł, a dzieci wchodzą za darmo.
        Szef chce dostać raport do piątku.
        Wygląda na to, że dziś w nocy spadnie śnieg.
        Nigdzie nie mogę znaleźć okularów, nie widziałaś ich?
        Sprzedał samochód i teraz wszędzie jeździ na rowerze.
        Kot wskoczył na stół i zjadł całą szynkę.
        Pokój na górze jest mały, ale jasny, a wieczorem widać stamtąd wzgórza.
    """,
    "Hungarian": """
        Megint az irodában hagytam az esernyőmet, és bőrig áztam hazafelé.
        Tudnál munka után tejet és kenyeret venni?
        A gyerekek már alszanak, halkítsd le a zenét, légy szíves.
        Az új étteremben vacsoráztunk a sarkon, és egyáltalán nem volt drága.
        A nővérem tavasszal férjhez megy, és még nem tudom, mit vegyek fel.
        A busz ma reggel is húsz percet késett.
        Hétfő óta esik, a kert olyan, mint egy tó.
        Mikor zár be az uszoda vasárnap?
        Ezt a cipőt leárazva vettem 8900 forintért, és már ki is lyukadt.
        A nagymamám süti a világ legjobb almás pitéjét.
        Hagyd csak a mosogatást, majd holnap megcsinálom.
        A mosógép furcsa hangot ad ki.
        A szomszédaink élénksárgára festik a házukat.
        Két macskája van, egy öreg kutyája és rengeteg növénye.
        Fél nyolckor találkozunk a mozi előtt.
        A szegedi vonat tíz perc múlva indul a negyedik vágányról.
        Van a közelben olyan gyógyszertár, amelyik éjjel is nyitva tart?
        Elköltöztek, mert megint emelték a lakbért.
        A telefonom alig bírja délig egy töltéssel.
        A megbeszélést áttették március 14-re, csütörtök fél tizenegyre.
        Senki sem szólt, hogy ma zárva lesz a bolt.
        Ha éhes vagy, van még leves a hűtőben.
        Szerintem menjünk a korábbi géppel, és aludjunk szállodában.
        A tanárnő rengeteg házi feladatot adott holnapra.
        Olyan hideg volt az éjjel, hogy befagytak a csövek.
        A nagyapám több mint negyven évig volt pék.
        Itt jó a kávé, de a székek borzasztóak.
        Elhozhatom egy barátomat szombaton a bulidra?
        Az orvos azt mondta, hogy többet sétáljak.
        Kell még egy kis só a levesbe.
        Mennyibe kerül a paradicsom, és honnan való?
        Mindig azt mondja, hogy majd hív, aztán sosem hív.
        A hétvégét a Balatonnál töltöttük, és nem csináltunk semmit.
        Elromlott a lift, úgyhogy a lépcsőn vittük fel a kanapét.
        Kapcsold le a villanyt, és zárd be az ajtót, ha elmész.
        Melyik kabát tetszik jobban a kettő közül?
        A jegy 2500 forint, a kicsiknek ingyenes.
        A főnököm péntekig kéri a jelentést.
        Úgy néz ki, hogy éjszaka havazni fog.
        Sehol sem találom a szemüvegemet, nem láttad?
        Eladta az autóját, és most mindenhová biciklivel jár.
        A macska felugrott az asztalra, és megette az összes sonkát.
        A fenti szoba kicsi, de világos, és esténként látszanak a dombok.
    """,
    "Turkish": """
        Şemsiyemi yine ofiste unuttum, eve sırılsıklam geldim.
        İşten sonra biraz süt ve ekmek alır mısın?
        Çocuklar uyudu bile, müziğin sesini biraz kıs.
        Köşedeki yeni lokantada yemek yedik, hiç de pahalı değildi.
        Kız kardeşim ilkbaharda evleniyor, ne giyeceğimi hâlâ bilmiyorum.
        Otobüs bu sabah yine yirmi dakika geç geldi.
        Pazartesiden beri yağmur yağıyor, bahçe göle döndü.
        Yüzme havuzu pazar günleri kaçta kapanıyor?
        Bu ayakkabıları indirimde 900 liraya aldım, şimdiden delindi.
        Anneannem dünyanın en güzel elmalı kekini yapar.
        Bulaşıkları bırak, yarın ben yıkarım.
        Çamaşır makinesi garip bir ses çıkarıyor.
        Komşularımız evlerini sarıya boyuyor.
        İki kedisi, yaşlı bir köpeği ve bir sürü çiçeği var.
        Yedi buçukta sinemanın önünde buluşalım.
        Konya treni on dakika sonra dördüncü perondan kalkıyor.
        Yakınlarda gece açık olan bir eczane var mı?
        Kira yine artınca daha küçük bir daireye taşındılar.
        Telefonumun şarjı öğlene kadar zor dayanıyor.
        Toplantı 14 Mart perşembe günü saat 10.30'a alındı.
        Dükkânın bugün kapalı olduğunu kimse söylemedi.
        Acıktıysan dolapta biraz çorba kaldı.
        Bence daha erken bir uçağa binip otelde uyuyalım.
        Öğretmen yarına çok fazla ödev verdi.
        Dün gece o kadar soğuktu ki borular dondu.
        Dedem kırk yıldan fazla fırıncılık yaptı.
        Burada kahve güzel ama sandalyeler çok rahatsız.
        Cumartesi günkü partine bir arkadaşımı getirebilir miyim?
        Doktor daha çok yürümem gerektiğini söyledi.
        Çorbaya biraz daha tuz lazım.
        Domates ne kadar, buralardan mı geliyor?
        Hep arayacağım der ama hiç aramaz.
        Hafta sonunu deniz kenarında hiçbir şey yapmadan geçirdik.
        Asansör bozuk olduğu için kanepeyi merdivenden çıkardık.
        Çıkarken ışıkları söndür ve kapıyı kilitle.
        Bu iki ceketten hangisini daha çok beğendin?
        Biletler 150 lira, küçük çocuklar ücretsiz giriyor.
        Müdürüm raporu cumaya kadar istiyor.
        Galiba bu gece kar yağacak.
        Gözlüğümü hiçbir yerde bulamıyorum, gördün mü?
        Arabasını sattı, artık her yere bisikletle gidiyor.
        Kedi masaya atlayıp bütün sucuğu yedi.
        Yukarıdaki oda küçük ama aydınlık, akşamları tepeler görünüyor.
    """,
}


def lines(language: str) -> list[str]:
    return [line.strip() for line in SENTENCES.get(language, "").strip().splitlines()]
