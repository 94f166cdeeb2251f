"""The words that stories and chats are made of. All written for this project."""

import zlib


def words(text):
    return [w.strip() for w in text.replace("\n", " ").split(",") if w.strip()]


ANIMALS = words("""fox, rabbit, bear, mouse, owl, cat, dog, frog, duck, hedgehog, squirrel, badger, otter, wolf, deer,
goat, sheep, cow, pig, horse, donkey, hen, rooster, goose, swan, pigeon, sparrow, robin, crow, eagle, hawk, parrot,
penguin, seal, whale, dolphin, shark, octopus, crab, turtle, tortoise, snail, worm, bee, ant, butterfly, moth, beetle,
ladybird, spider, cricket, firefly, dragonfly, lizard, snake, crocodile, elephant, lion, tiger, leopard, cheetah, zebra,
giraffe, hippo, rhino, monkey, gorilla, panda, koala, kangaroo, camel, llama, bison, moose, reindeer, beaver, mole, bat,
raccoon, skunk, weasel, ferret, hamster, guinea pig, puppy, kitten, lamb, calf, foal, chick, duckling, bunny, pony,
ostrich, flamingo, peacock, toucan, pelican, seagull, puffin, jellyfish, starfish, seahorse, salmon, goldfish, toad,
newt, salamander, hare, lynx, jaguar, walrus, polar bear, sloth, anteater, armadillo, porcupine, chipmunk, gecko,
chameleon, iguana, lobster, shrimp, squid, heron, stork, crane, turkey, quail, magpie, woodpecker, hummingbird, yak""")
PEOPLE = words("""girl, boy, farmer, baker, sailor, fisherman, gardener, painter, teacher, king, queen, prince, princess,
knight, wizard, witch, pirate, shepherd, tailor, miller, blacksmith, clockmaker, musician, singer, dancer, explorer,
inventor, astronaut, pilot, captain, doctor, nurse, librarian, postman, cook, carpenter, clown, detective, scientist,
grandmother, grandfather, child, woodcutter, merchant, potter, weaver, lighthouse keeper, train driver, magician""")
FANTASY = words("""dragon, robot, unicorn, fairy, giant, ghost, troll, elf, dwarf, mermaid, monster, goblin, phoenix,
griffin, gnome, alien, snowman, scarecrow, toy soldier, teddy bear, doll, wooden puppet, yeti, genie, sea monster,
dinosaur, baby dragon, space robot, star child, moon rabbit, stone golem, cloud sheep, little monster, ice dragon""")
EVERYDAY = words("""programmer, engineer, student, grandma, grandpa, mother, father, baby, brother, sister, neighbour, soldier, guard,
thief, judge, mayor, chef, waiter, firefighter, policeman, vampire, zombie, superhero, ninja, viking, cowboy, caveman, builder,
hunter, traveller, giantess, dwarf king, old man, old woman, young man, young woman, little girl, little boy, artist, actor,
writer, poet, beekeeper, gardener's cat, spaceship, cheese, chocolate, pizza, coffee cup, egg, bread, cake, box, bag, lamp post,
garden, school, park, mouse king, black cat, white horse, sea lion, hummingbird, ladybug, bumblebee, caterpillar, polar fox,
koala bear, sea turtle, parakeet, mosquito, fly, wasp, flea, fish, bird, insect, animal, tree frog, wild boar, mammoth,
triceratops, tiny dragon, sorcerer, fortune teller, snow queen, leprechaun, kraken, werewolf, mummy, skeleton, cyclops, android,
machine, drone, laptop, phone, engine, truck, van, airplane, helicopter, sailboat, canoe, raft, skateboard, roller skate,
doorbell, alarm clock, desk, sofa, carpet, curtain, oven, pan, fork, knife, plate, bowl, glass, soap, towel, comb, brush, ring,
crown, sword, shield, book of spells, magic wand, feather, nut, grape, strawberry, peach, cherry tree, oak, daisy, tulip, grass,
cloud of dust, storm, thunder, sun, ocean, desert, forest, lake, waterfall, fire, ice cube, icicle, statue, wall, road, ghost train""")
THING_HEROES = words("""teapot, lamp, boat, train, tractor, bus, car, plane, rocket, balloon, kite, clock, chair, table,
spoon, cup, umbrella, candle, lantern, pencil, crayon, book, letter, shoe, boot, sock, hat, mitten, scarf, button, coin,
key, bell, drum, violin, piano, trumpet, cloud, star, moon, raindrop, snowflake, leaf, acorn, seed, tree, flower,
sunflower, rose, mushroom, pumpkin, apple, potato, carrot, cookie, pancake, cupcake, loaf of bread, toaster, kettle,
broom, bucket, ladder, hammer, bicycle, scooter, wagon, submarine, ship, tugboat, lighthouse, windmill, bridge, house,
castle, tower, door, window, mirror, pillow, blanket, bed, wave, river, mountain, volcano, island, pebble, stone, wind,
shadow, rainbow, comet, planet, satellite, computer, printer, telephone, radio, camera, toothbrush, sponge, bathtub,
fridge, ball, marble, puzzle piece, paper boat, paper plane, snow globe, music box, jar, bottle, basket, backpack,
suitcase, ticket, stamp, map, compass, anchor, sail, flag, traffic light, street lamp, fire engine, crane truck, digger,
digital watch, calculator, server, keyboard, screen, battery, light bulb, cactus, pine tree, pear, banana, lemon, onion,
tomato, bean, noodle, dumpling, sandwich, teacup, saucepan, scissors case, ribbon, glove, raincoat, sandcastle""")

HUMAN_F = words("""Anna, Lily, Mia, Emma, Sara, Nora, Ella, Rosa, Clara, Maya, Zoe, Lucy, Grace, Ruby, Alice, Ivy, Hana,
Lina, Julia, Eva, Amira, Leila, Nina, Sofia, Marta, Freya, Greta, Ada, Iris, Molly, Elsie, Tess, Priya, Yuki, Olga""")
HUMAN_M = words("""Tom, Ben, Sam, Max, Leo, Finn, Jack, Oscar, Hugo, Theo, Noah, Adam, Omar, Luca, Felix, Emil, Otto,
Nils, Jonas, Peter, Paul, David, Henry, Arthur, Milo, Karl, Ivan, Ravi, Kenji, Tariq, Ali, Marco, Pablo, Simon, Ned""")
PET = words("""Pip, Pepper, Biscuit, Clover, Hazel, Bramble, Maple, Poppy, Daisy, Willow, Mossy, Pebble, Sunny, Misty,
Juniper, Nutmeg, Ginger, Cocoa, Honey, Button, Dot, Fern, Sky, Ripple, Tumble, Bubbles, Sparky, Whiskers, Toffee, Waffle,
Pickle, Noodle, Bingo, Zip, Zuzu, Momo, Kiki, Lulu, Tilly, Milly, Dusty, Rusty, Smoky, Flicker, Twig, Acorn, Berry,
Cherry, Plum, Olive, Basil, Sage, Tansy, Thistle, Barley, Chestnut, Marble, Amber, Coral, Pearl, Luna, Nova, Comet,
Echo, Breeze, Storm, Snowy, Frosty, Crumb, Muffin, Peanut, Sprout, Bean, Fig, Kip, Tobo, Wim, Bodo, Fizz, Rollo, Gus,
Bruno, Boris, Mabel, Hilda, Edna, Walter, Stanley, Winston, Rupert, Percy, Monty, Wilbur, Chester, Barnaby, Humphrey""")

GENDER = {name: "he" for name in words("""Gus, Bruno, Boris, Walter, Stanley, Winston, Rupert, Percy, Monty, Wilbur, Chester, Barnaby,
Humphrey, Basil, Rollo, Bodo, Rusty""")}
GENDER.update({name: "she" for name in words("""Poppy, Daisy, Willow, Hazel, Ginger, Honey, Lulu, Tilly, Milly, Olive, Pearl, Luna,
Mabel, Hilda, Edna, Zuzu, Cherry, Tansy, Amber, Coral""")})

ADJECTIVES = words("""little, little, little, small, young, brave, shy, curious, clever, kind, sleepy, quiet, cheerful,
gentle, tiny, old, lonely, silly, friendly, proud, careful, hungry, grumpy, happy, busy, playful, patient, bold, round,
red, blue, green, yellow, grey, white, brown, golden, purple, big, very small, good-hearted, forgetful, dreamy, lively""")
TRAITS = words("""kind, brave, curious, shy, clever, careful, cheerful, gentle, patient, quiet, playful, helpful, honest,
friendly, hopeful, stubborn, thoughtful, hard-working, a little clumsy, a little shy, always hungry, full of ideas,
never in a hurry, very proud, easily surprised""")
OBJECT_ADJ = words("""red, blue, green, yellow, silver, golden, old, new, little, shiny, wooden, tiny, striped, round,
purple, orange, white, soft, beautiful, strange, bright, small, pretty, painted, pink, brown, smooth, warm""")
OBJECTS = words("""kite, ball, hat, scarf, bell, key, lantern, umbrella, boat, drum, flute, book, map, coin, ring, button,
shell, feather, stone, basket, blanket, teapot, cup, spoon, lamp, clock, compass, whistle, mirror, ribbon, necklace,
crown, backpack, boot, mitten, glove, pencil, paintbrush, puzzle, toy train, toy boat, toy car, doll, teddy bear, marble,
balloon, music box, box, bottle, jar, telescope, magnet, watch, pillow, wagon, scooter, bicycle, sled, bucket, shovel,
candle, flag, fishing rod, hammer, violin, trumpet, guitar, letter, picture, photograph, bracelet, purse, pocket knife,
pinwheel, yo-yo, paper plane, paper boat, snow globe, robot toy, star, acorn, pebble, leaf, flower, hourglass""")
FOODS = words("""apple pie, berry cake, carrot soup, honey bread, pancakes, cookies, strawberry jam, noodle soup, pumpkin
pie, plum tart, cheese buns, nut cake, cherry cake, mushroom soup, corn bread, chocolate cake, lemon cake, pear tart,
vegetable stew, fresh bread, blueberry muffins, rice pudding, toast with honey, banana bread, hot cocoa, ginger biscuits""")
SNACKS = words("""apples, berries, nuts, carrots, pears, plums, cookies, cherries, strawberries, seeds, mushrooms, peaches,
oranges, pumpkins, chestnuts, blueberries, cakes, sweet buns, grapes, figs, raisins, biscuits, pies, radishes""")

HOMES = [
    "in a small house at the edge of the forest", "in a cosy burrow under an oak tree", "by a quiet lake",
    "in a village by the sea", "on top of a green hill", "on a farm near the river", "in a little town with narrow streets",
    "in a tall tower in the middle of the city", "in a cottage with a blue door", "under an old stone bridge",
    "in a garden full of flowers", "at the foot of a high mountain", "in a warm valley between two hills",
    "on a small island", "near a big waterfall", "in the attic of an old house", "in a busy harbour",
    "in a hollow tree", "behind the old windmill", "beside the railway line", "in a sunny meadow", "at the end of a long road",
    "in a snowy land far in the north", "in a cave above the sea", "next to a small pond", "in a quiet corner of the park",
    "in a workshop full of tools", "above the bakery", "in a wide desert", "in a deep green jungle", "on the edge of a cliff",
    "in a castle with seven towers", "on a houseboat on the river", "in a big old library", "in a toy shop on the corner",
]
# (the place, the preposition for being there)
PLACES = [tuple(p.split(":")) for p in words("""the forest:in, the dark forest:in, the old castle:in, the beach:on,
the lake:at, the river:by, the mountain:on, the high mountain:on, the hill:on, the meadow:in, the garden:in, the park:in,
the village:in, the market:at, the city:in, the harbour:in, the island:on, the cave:in, the desert:in, the jungle:in,
the valley:in, the old mill:at, the lighthouse:at, the railway station:at, the library:in, the school:at, the museum:in,
the farm:on, the orchard:in, the pond:by, the waterfall:by, the swamp:in, the bridge:on, the snowy field:in,
the frozen lake:on, the pine wood:in, the moon:on, the sea:by, the rocky shore:on, the old tower:in, the hidden valley:in,
the wheat field:in, the bakery:in, the town square:in, the crystal cave:in, the misty marsh:in, the secret garden:in,
the quiet bay:in, the sunflower field:in, the north woods:in, the windy cliff:on, the toy shop:in, the old ruins:in""")]
SPOTS = words("""under a big leaf, behind a grey rock, inside a hollow log, at the bottom of a well, under the old bridge,
in the top of a tree, in a bird's nest, between two stones, in the tall grass, under a bench, behind the door,
in an empty barrel, beside the path, under a pile of leaves, in a crack in the wall, on a high shelf, inside an old boot,
in the mud by the water, under a wooden box, behind a waterfall, in a bush full of thorns, beneath a mushroom""")
WEATHER = words("""sunny, rainy, windy, cloudy, foggy, snowy, warm, cold, bright, grey, stormy, frosty, mild""")
TIMES = words("""morning, afternoon, evening, spring morning, summer afternoon, autumn day, winter morning, Monday morning,
Saturday, sunny day, rainy day, windy day, cold morning, warm evening, quiet afternoon, summer day, spring day""")
LIKES = words("""looking at the stars, collecting stones, singing old songs, baking bread, reading books, telling jokes,
drawing pictures, climbing trees, splashing in puddles, watching the clouds, planting flowers, playing hide-and-seek,
walking in the rain, listening to the wind, counting the boats, making paper hats, jumping over streams, feeding the birds,
dancing in the kitchen, exploring new paths, building towers, sleeping late, drinking warm milk, helping the neighbours,
whistling in the morning, rolling down hills, fixing broken things, learning new words, painting stones, flying kites,
watching the sunset, picking berries, playing the drum, writing letters, asking questions, sweeping the floor""")
FEARS = [tuple(p.split(":")) for p in words("""the dark:go out at night:a small light, deep water:cross the river:a steady boat,
thunder:go out in a storm:a bell in the pocket, high places:climb the hill:a firm step,
loud noises:go to the market:a quiet song, strangers:talk to anyone new:a friendly smile, the big bridge:cross the bridge:a held hand,
spiders:go into the cellar:a kind hello, ghosts:enter the old house:a bright lantern, getting lost:leave the garden:a map,
falling:jump over the stream:a long stick, the wind:walk on the cliff:a warm coat, the cold:play in the snow:a woolly scarf,
being laughed at:sing in front of others:a brave smile, big animals:walk past the barn:a soft voice""")]
SKILLS = [tuple(p.split(":")) for p in words("""swim:swam, fly:flew, sing:sang, dance:danced, read:read, whistle:whistled,
skate:skated, ski:skied, bake bread:baked bread, paint:painted, juggle:juggled, climb:climbed, sail a boat:sailed a boat,
ride a bicycle:rode a bicycle, play the flute:played the flute, play the drum:played the drum, write:wrote, knit:knitted,
tell stories:told stories, count to one hundred:counted to one hundred, do a somersault:did a somersault,
tie a knot:tied a knot, cook soup:cooked soup, whisper:whispered, jump rope:jumped rope, play the violin:played the violin""")]
BUILDS = words("""boat, tree house, kite, bridge, snowman, sled, windmill, raft, birdhouse, wagon, clock, tower, sandcastle,
lantern, robot, rocket, flying machine, swing, tent, puppet, drum, flute, garden, scarecrow, bookshelf, telescope, bench,
little house, wooden horse, fountain, ladder, music box, submarine, balloon, train, paper dragon, castle""")
BROKEN = words("""lighthouse, town clock, old bridge, windmill, school bell, fountain, carousel, music box, water pump,
railway gate, garden gate, ferry boat, big oven, street lamp, radio, merry-go-round, church bell, elevator, telescope""")
SOUNDS = [tuple(p.split(":")) for p in words("""tap tap tap:a branch knocking on the window, whooo:the wind in an empty bottle,
squeak squeak:an old gate that needed oil, drip drop:a pipe with a tiny hole, scratch scratch:a kitten that wanted to come in,
bump bump:an apple rolling down the roof, hummm:a family of bees in the wall, ding ding:a little bell in the wind,
rustle rustle:a hedgehog looking for supper, thump thump:a rabbit practising its drum, splash splash:a duck in the rain barrel,
creak creak:a chair rocking in the wind, buzz buzz:a toy that had been left on, sniff sniff:a lost puppy at the door""")]
MISTAKES = [tuple(p.split(":")) for p in words("""broke the blue vase:the blue vase, spilled the paint:the paint,
broke the kitchen window:the kitchen window, ate the last piece of cake:the cake, tore the old picture:the picture,
lost the garden key:the garden key, let the chickens out:the chickens, stepped on the flowers:the flowers,
dropped the honey jar:the honey jar, broke the teapot:the teapot, left the gate open:the gate,
burned the bread:the bread, broke the toy boat:the toy boat, spilled ink on the map:the map""")]
LESSONS = {
    "friends": ["a good friend makes every day better", "nobody has to be alone", "a friend can be found in the strangest place",
                "two friends can do more than one", "being kind is the best way to find a friend"],
    "brave": ["being brave means trying even when you are afraid", "a fear gets smaller when you look at it",
              "it is all right to be afraid", "one small step is enough to begin", "fear grows smaller when someone is with you"],
    "share": ["things taste better when you share them", "sharing makes everyone happy", "there is always enough for two",
              "a full heart is better than a full cupboard"],
    "honest": ["it is best to tell the truth", "the truth makes the heart light", "everyone makes mistakes",
               "saying sorry is the first step to making things right"],
    "patient": ["good things take time", "you should never give up too soon", "practice makes hard things easy",
                "slow and steady work is never lost", "a mistake is only a way to learn"],
    "kind": ["helping others is worth more than winning", "a kind deed always comes back", "even small hands can give big help",
             "kindness costs nothing", "no one is too small to help"],
    "home": ["there is no place like home", "the best part of a journey is coming home", "the world is big but home is warm"],
    "careful": ["it is wise to look closely before being afraid", "strange things are often simple things",
                "a little courage can solve a big mystery"],
    "content": ["the best treasure is a good friend", "the things we have are often enough", "happiness is not something you can buy",
                "the best gift comes from the heart"],
}
THEMES = {"friendship": ["friend", "share", "gift"], "courage": ["fear", "sound", "storm"], "being brave": ["fear", "sound"],
          "sharing": ["share"], "honesty": ["truth"], "telling the truth": ["truth"], "patience": ["learn", "seed"],
          "kindness": ["trouble", "race", "gift"], "helping others": ["trouble", "fix", "race"], "a birthday": ["gift"],
          "a treasure": ["treasure"], "a treasure map": ["treasure"], "a race": ["race"], "a storm": ["storm"],
          "a strange noise": ["sound"], "a wish": ["wish"], "a wishing star": ["wish"], "getting lost": ["lostway"],
          "a garden": ["seed"], "growing something": ["seed"], "never giving up": ["learn", "build"], "an adventure": ["treasure", "storm", "lostway"],
          "a new friend": ["friend"], "a mystery": ["sound", "discover"], "a falling star": ["star"], "a star": ["star"], "a baby bird": ["nest"], "bedtime": ["sleep"], "the night": ["sleep", "star"], "honesty and friendship": ["discover", "truth"], "an invention": ["build"], "magic": ["wish"], "a party": ["party"],
          "cooking": ["party"], "a journey": ["storm", "treasure"], "a rainy day": ["storm"], "love": ["gift", "friend"], "a lost toy": ["lost"], "school": ["firstday"], "the first day at school": ["firstday"], "two friends": ["quarrel", "friend"], "a quarrel": ["quarrel"], "a sick friend": ["sick"], "a boat trip": ["boattrip"], "the sea": ["boattrip"], "sailing": ["boattrip"], "saying sorry": ["quarrel", "truth"]}

# Each plot needs things and places that suit it.
THINGS_FOR = {
    "trouble": words("rope, ladder, shovel, long stick, fishing rod, scarf, umbrella, bucket, blanket, broom"),
    "build": words("rope, wheel, nail, hammer, ribbon, button, spring, board, stick, piece of cloth, hook, chain"),
    "fix": words("key, wheel, spring, button, coin, spoon, screw, ring, nail, hook, gear, bell"),
    "star": words("basket, hat, scarf, blanket, box, jar, lantern, boot, mitten, bucket, bag, cup, pocket"),
    "nest": words("basket, hat, scarf, blanket, box, boot, mitten, bucket, bag, cup, handkerchief"),
    "storm": words("umbrella, blanket, map, kite, ball, hat, basket, flag, compass, picture"),
    "sound": words("lantern, candle, lamp, torch, flashlight"),
    "lostway": words("lantern, candle, lamp, torch, flashlight"),
    "sleep": words("blanket, pillow, lantern, teddy bear, book, cup, lamp, candle"),
    "boattrip": words("rope, blanket, flag, bucket, coat, long stick, lantern, board, sheet"),
    "sick": words("blanket, book, flower, pillow, teddy bear, cup of tea, scarf, picture"),
    "firstday": words("pencil, book, ruler, toy car, teddy bear, box, ball, picture, paintbrush, apple"),
    "seed": words("bucket, watering can, shovel, fence, blanket, lamp, little sign, umbrella"),
    "treasure": words("shovel, lantern, rope, compass, map, blanket"),
}
OUTDOORS = [p for p in PLACES if p[0].split()[-1] in (
    "forest", "beach", "lake", "river", "hill", "meadow", "garden", "park", "village", "island", "valley", "farm", "orchard", "pond", "wood", "field", "woods", "mountain", "bay")]
PLACES_FOR = {plot: OUTDOORS for plot in ("seed", "nest", "race", "storm", "star", "share", "treasure")}
POPULAR = words("""fox, rabbit, bear, mouse, owl, cat, dog, frog, hedgehog, squirrel, wolf, dragon, robot, unicorn, fairy, girl, boy, princess,
knight, wizard, pirate, elephant, penguin, turtle, lion, kitten, puppy, duck, bird, star, cloud, train, boat, teapot, tree""")
PIECES = sorted({part for noun in ANIMALS + PEOPLE + FANTASY + EVERYDAY + THING_HEROES + OBJECTS + SNACKS + TRAITS for part in noun.split() if len(part) > 3 and part.isalpha()})
# A hero's name and a friend's come from different halves of the lists, so that they are never confused.
HERO_NAMES = {"f": HUMAN_F[::2], "m": HUMAN_M[::2], "pet": PET[::2]}
FRIEND_NAMES = {"f": HUMAN_F[1::2], "m": HUMAN_M[1::2], "pet": PET[1::2]}


def favourite(rng, options, key, probability=0.3, count=2):
    """Returns often one of the few options that belong to `key`, and otherwise any option. So a dragon's stories differ
    from a teapot's even if the likeliest word is always taken."""
    if rng.random() < probability:
        which = 0 if rng.random() < 0.4 else rng.randrange(count)
        return options[zlib.crc32(("%s %d" % (key, which)).encode()) % len(options)]
    return rng.choice(options)


SYLLABLES = words("""ba, bo, bri, cla, da, dor, el, fa, fen, gri, gul, ha, is, jo, ka, kel, la, lin, lo, ma, mer, mo, na, nim, or,
pa, pel, qui, ra, rin, ro, sa, shi, sno, ta, tir, to, u, va, vel, wo, ya, zan, zi, plo, bur, gle, ster, dle, mog""")
CONSONANT_ENDS = words("""n, l, r, s, t, p, k, x, m, b, ck, sh, ng, rd, st, th""")


def invented_noun(rng):
    """Makes a word that is in no list, so that the model learns to repeat words of the question."""
    if rng.random() < 0.6:  # the head of one word and the tail of another
        a, b = rng.choice(PIECES), rng.choice(PIECES)
        word = a[:rng.randrange(2, min(6, len(a)))] + b[-rng.randrange(2, min(6, len(b))):]
        return word if rng.random() < 0.7 else word + rng.choice(("er", "ling", "o", "ist", "y", "a", "let", "ing", "ant", "us"))
    word = "".join(rng.choice(SYLLABLES) for _ in range(rng.choice((1, 2, 2, 3))))
    if rng.random() < 0.7 or len(word) < 3:
        word += rng.choice(CONSONANT_ENDS)
    return word
