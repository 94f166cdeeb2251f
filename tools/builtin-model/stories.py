"""Writes short stories. A story is a plot filled with a world: a hero, a friend, a place, a thing, and what they want.

Every fact is drawn once, before the first sentence, and each sentence reads it from the same context, so that names,
pronouns and things stay the same from beginning to end. `Story.facts` keeps what a reader could be asked about.
"""

import re

from grammar import expand, pick, tidy
import words as W


_speaker = re.compile(r"\" (said|asked|cried|shouted|called) \{[hf]\}(?!,)")  # after what is said, and not before "a red owl"


class Story:
    def __init__(self):
        self.context = {}
        self.facts = {}
        self.paragraphs = []
        self.plot = ""

    @property
    def text(self):
        return "\n\n".join(self.paragraphs)


FAR_SHORES = [("the island", "on"), ("the hidden valley", "in"), ("the jungle", "in"), ("the rocky shore", "on"), ("the quiet bay", "in"), ("the crystal cave", "in"),
              ("the secret garden", "in"), ("the village", "in"), ("the lighthouse", "at"), ("the old castle", "in"), ("the misty marsh", "in")]
PRONOUNS = {"he": ("he", "him", "his", "himself"), "she": ("she", "her", "her", "herself"), "it": ("it", "it", "its", "itself")}
FEMALE = set(W.words("girl, queen, princess, witch, grandmother, hen, cow, mermaid, fairy, doll"))
MALE = set(W.words("boy, king, prince, grandfather, rooster, wizard, snowman, fisherman, postman, toy soldier"))


def put_character(context, prefix, kind, rng, adjective=None, name=None, pronoun=None, avoid_name="", avoid_pronoun=""):
    """Adds the keys of one character: name {h}, kind {hk}, adjective {hadj}, pronouns {hhe} {hhim} {hhis} {hself}."""
    if pronoun is None:
        if kind in FEMALE:
            pronoun = "she"
        elif kind in MALE:
            pronoun = "he"
        else:
            pronoun = rng.choice(("he", "she", "he", "she", "it") if kind in W.THING_HEROES else ("he", "she"))
            if pronoun == avoid_pronoun and rng.random() < 0.6:
                pronoun = "she" if pronoun == "he" else "he"
    if name is None:
        names = W.HERO_NAMES if prefix == "h" else W.FRIEND_NAMES
        while True:
            if kind in W.PEOPLE:
                name = W.favourite(rng, names["f" if pronoun == "she" else "m"], kind + pronoun)
            elif rng.random() < 0.06:
                name = W.invented_noun(rng).capitalize()
            else:
                name = W.favourite(rng, names["pet"], kind)
            if pronoun != "it" and name in W.GENDER and W.GENDER[name] != pronoun:
                continue
            if name != avoid_name and name.lower() != kind:
                break
    adjective = adjective or W.favourite(rng, W.ADJECTIVES, kind)
    while adjective == kind.split()[0] or (adjective in ("little", "tiny", "small") and kind.startswith(("little", "baby"))):
        adjective = rng.choice(W.ADJECTIVES)
    context[prefix] = name
    context[prefix + "k"] = kind
    context[prefix + "adj"] = adjective
    context["a" + prefix] = "a " + adjective + " " + kind
    context[prefix + "the"] = "the " + kind
    for key, value in zip(("he", "him", "his", "self"), PRONOUNS[pronoun]):
        context[prefix + key] = value
    context[prefix + "x"] = "[{%s}|{%s}|{%s}|{%s}|the {%sk}|{%she}]" % ((prefix,) * 6)


def random_kind(rng):
    r = rng.random()
    if r < 0.18:
        return rng.choice(W.POPULAR[:8] if rng.random() < 0.4 else W.POPULAR)
    if r < 0.42:
        return rng.choice(W.ANIMALS)
    if r < 0.54:
        return rng.choice(W.PEOPLE)
    if r < 0.64:
        return rng.choice(W.FANTASY)
    if r < 0.76:
        return rng.choice(W.EVERYDAY)
    if r < 0.90:
        return rng.choice(W.THING_HEROES)
    return W.invented_noun(rng)


OPENINGS = [
    "Once upon a time, there was {ah} named {h}. {Hhe} lived {home}.",
    "Once upon a time, there was {ah} [named|called] {h} who lived {home}.",
    "Once upon a time, {home}, there lived {ah} [named|called] {h}.",
    "Once upon a time, {ah} lived {home}. {Hhis} name was {h}.",
    "Once upon a time, there lived {ah}. {Hhis} name was {h}[, and {hhe} lived {home}|. {Hhe} lived {home}].",
    "Once there was {ah} [named|called] {h}. {Hhe} lived {home}.",
    "There once was {ah} [named|called] {h} who lived {home}.",
    "There was once {ah} who lived {home}. Everyone called {hhim} {h}.",
    "Long ago, {home}, there lived {ah} [named|called] {h}.",
    "Long, long ago, {ah} named {h} lived {home}.",
    "{H} was {ah}. {Hhe} lived {home}.", "{H} was {ah} who lived {home}.", "{H} the {hk} lived {home}.",
    "{H} the {hk} [woke up early|looked out of the window|was in a good mood]. {Hhe} lived {home}, and [every day was new|the day was just beginning|{hhe} loved it there].",
    "The {hadj} {hk} was called {h}. {Hhe} lived {home}.",
    "The {hadj} {hk} lived {home}. {Hhis} name was {h}.",
    "The {hadj} {hk} [woke up early|opened {hhis} eyes|looked at the sky]. {Hhis} name was {h}, and {hhe} lived {home}.",
    "The {hadj} {hk} named {h} lived {home}.",
    "A {hadj} {hk} named {h} lived {home}.", "A {hk} named {h} lived {home}. {Hhe} was a {hadj} {hk}[, everyone said so|].",
    "In a land far away, there was {ah} [named|called] {h}. {Hhe} lived {home}.",
    "Far away, beyond the [hills|mountains|sea], there lived {ah} [named|called] {h}. {Hhe} lived {home}.",
    "Not so long ago, {ah} [named|called] {h} lived {home}.",
    "One [{weather}|bright|quiet|cold|warm] morning, {ah} named {h} [woke up|sat up in bed|went outside|was having breakfast]. {Hhe} lived {home}.",
    "One day, {ah} named {h} [woke up early|went for a walk|had an idea]. {Hhe} lived {home}.",
    "It was a {weather} [day|morning|evening]. {H} the {hk} was at home. {Hhe} lived {home}.",
    "It was a {weather} day, and {ah} named {h} was [sitting by the window|looking at the sky|drinking tea]. {Hhe} lived {home}.",
    "This is the story of {ah} [named|called] {h}, who lived {home}.",
    "This is a story about {h}, {ah}. {H} lived {home}.",
    "Have you heard of {h} the {hk}? {Hhe} lived {home}.",
    "Everyone knew {h}, the {hadj} {hk} who lived {home}.",
    "There was {ah} named {h}, and {hhe} lived {home}.",
    "\"Good morning, world!\" said {h}. {H} was {ah}, and {hhe} lived {home}.",
    "\"What a [lovely|beautiful|fine] day!\" said {h} the {hk}. {Hhe} lived {home}.",
    "Every morning, {h} the {hk} [said hello to the sun|opened the window and sang|ate breakfast in the garden]. {Hhe} lived {home}.",
    "Many years ago, when [the world was young|the rivers could talk|the stars were closer], {ah} named {h} lived {home}.",
    "My friend, listen to the story of {h} the {hk}. {Hhe} lived {home}.",
    "Somewhere, {home}, there was {ah}. {Hhis} name was {h}.",
    "{Home} lived {ah} [named|called] {h}.", "{Home}, there was {ah} [named|called] {h}.",
    "The {hk} was [tired|happy|still asleep|busy|hungry]. {Hhis} name was {h}, and {hhe} lived {home}.",
    "The {hk} [looked out of the window|opened the door|sat down and sighed|stretched and yawned]. {Hhis} name was {h}, and {hhe} lived {home}.",
    "The {hadj} {hk} was [happy|tired|hungry|bored|alone]. {Hhis} name was {h}, and {hhe} lived {home}.",
    "There was once {ah} who liked {like}. {Hhis} name was {h}, and {hhe} lived {home}.",
    "There was {ah} who lived {home}. [Everybody knew {hhim}.|All the neighbours liked {hhim}.|] {Hhis} name was {h}.",
    "A long time ago, there was {ah} named {h}. {Hhe} lived {home}.",
    "Once, when [the snow was falling|the nights were long|spring had just begun|the apples were ripe], {ah} named {h} lived {home}.",
    "Let me tell you about {h} the {hk}, who lived {home}.", "{Ah} lived {home}. {Hhis} name was {h}.",
    "One [night|evening], {ah} named {h} [looked up at the stars|sat by the fire|was lying in bed]. {Hhe} lived {home}.",
    "Do you know {h}? {H} was {ah} who lived {home}.",
]
TRAIT_LINES = [
    "{Hhe} was {trait} and {trait2}.", "Everyone said that {h} was {trait} and {trait2}.", "{H} was {trait}[, and {trait2} too| and {trait2}].",
    "{Hhe} was {trait}, [but|and] {hhe} was also {trait2}.", "",
]
LIKE_LINES = [
    "{Hhe} liked {like} and {like2}.", "{Hhe} loved {like}[| more than anything].", "Most of all, {hhe} [loved|liked] {like}.",
    "{Hhis} favourite thing was {like}.", "Every day, {hhe} spent hours {like}.",
]
SCENERY = [
    "The sun was [shining|warm|high in the sky].", "A [soft|cool|warm|gentle] wind was blowing.", "The birds were singing in the trees.",
    "The air smelled of [grass|rain|flowers|fresh bread|pine trees|the sea].", "White clouds moved slowly across the sky.",
    "The sky was [grey|blue|pink|golden] and [quiet|wide|soft].", "The leaves [danced|rustled|shone] in the wind.",
    "Everything was [quiet|still|calm].", "Far away, a bell rang.", "A [butterfly|bee|leaf] flew past {hhis} nose.",
]
WALKING = [
    "{Hhe} walked and walked[| until {hhis} feet were tired| past fields and fences].", "The way was long, but {hhe} did not mind.",
    "On the way, {hhe} [sang a little song|counted the trees|ate a sandwich|saw a rabbit run by|jumped over a stream].",
    "The path went [up and down|left and right|over a hill and through a gate].", "{Hhe} hummed a little tune.",
]
TOGETHER = [
    "They [talked|laughed|sang] all the way.", "On the way, they shared some {snack}.", "They stopped to rest [under a tree|on a stone|by a stream].",
    "\"Are you tired?\" asked {f}. \"Not at all,\" said {h}.", "{F} told a funny story, and {h} laughed.",
    "\"I am glad that you are here,\" said {h}.", "\"This is [fun|nice|exciting],\" said {f}.", "They walked side by side.",
    "{F} knew a short way [through the fields|behind the hill|along the wall].",
]
MEET = [
    "[There|On the way], {hhe} met {af} named {f}.", "Just then, {af} [came by|walked past|came along|appeared]. {Fhis} name was {f}.",
    "{Inplace}, {hhe} met {af}. \"[Hello|Good day|Hi], I am {f},\" said {fthe}.",
    "Then {hhe} saw {af}. {Fhis} name was {f}.", "Soon {hhe} met {f}, {af}.",
]
HELLO = [
    "\"[What is wrong|What is the matter|Why do you look so sad|Can I help you]?\" asked {f}.",
    "\"You look [sad|worried|upset]. [What happened|What is wrong]?\" [asked|said] {f}.",
    "\"Hello! [Do you need help|Can I help|What are you doing]?\" asked {fthe}.",
]
ENDINGS = [
    "And [from that day on|after that day], {h} and {f} were [best friends|good friends|always together].",
    "That night, {h} [slept well|fell asleep with a smile|dreamed of {place}].", "{H} was very happy.", "{H} smiled all the way home.",
    "It was the best day that {h} had ever had.", "And they [lived happily|were happy] ever after.",
    "{H} and {f} [laughed|danced|sang] until the sun went down.", "Then {h} went home, [tired but happy|happy and proud|warm and sleepy].",
    "And every time {h} thought of that day, {hhe} smiled.", "The stars came out, and [all was well|everything was quiet|{h} felt at home].",
]
LEARNED = ["{H} [learned|had learned|now knew] that {lesson}.", "That day, {h} learned that {lesson}.", "And so {h} learned that {lesson}.",
           "\"Now I know that {lesson},\" said {h}.", "\"You see,\" said {f}, \"{lesson}.\""]

# Each plot: the lessons it can teach, how a prompt may name it, its paragraphs and its facts. A line that starts with
# "?" may be left out, ones with "*NAME" draw a sentence from the list NAME. The introduction and the ending are added.
PLOTS = {
    "lost": {
        "lesson": ["content", "patient", "kind"], "who": "who lost {hhis} {obj}",
        "paras": [
            ["{H} had {aobj}. [{Hhe} took it everywhere.|It was {hhis} favourite thing.|It was a gift from {hhis} grandmother.|{Hhe} loved it very much.]",
             "[One {time}|But one {time}], the {obj} was [gone|missing|nowhere to be seen].",
             "{H} looked [under the bed|under the table|behind the curtain], [behind the door|in every box|in the cupboard] and [in the garden|on the roof|under the stairs], but [it was not there|{hhe} could not find it|the {obj} was not there].",
             "?\"[Oh no!|Oh dear!] Where is my {obj}?\" {hhe} [cried|asked|said].", "?{H} was very sad."],
            ["{H} went {toplace} to look for it.", "?*WALKING", "*MEET", "*HELLO",
             "\"I have lost my {obj},\" said {h}. \"[I miss it so much|I have looked everywhere|I do not know where it is].\"",
             "\"[Don't worry|Do not be sad|I will help you]. [We will look for it together|Four eyes see more than two|Let us look together],\" said {f}."],
            ["?*TOGETHER", "They looked [high and low|here and there|everywhere]. They asked [an old turtle|a bird|a snail|a busy bee], but [nobody had seen it|no one knew anything].",
             "[At last|Then|Suddenly], {f} [called|shouted|said], \"[Look|Look over there|Come here]! [There is something|I see something] {spot}!\"",
             "It was the {obj}[!| of {h}!|, a little dirty but not broken!]", "{H} [jumped for joy|hugged {hhis} {obj}|laughed out loud]. \"[Thank you|Thank you so much|You found it], {f}!\" {hhe} said."]],
        "facts": {"want": "{h} wanted to find {hhis} {obj}.", "problem": "{h} had lost {hhis} {obj}.", "solve": "{f} found the {obj} {spot}.",
                  "end": "{f} and {h} found the {obj} {spot}, and {h} was very happy.", "why": "sad|{hhe} had lost {hhis} {obj}"}},
    "trouble": {
        "lesson": ["kind", "friends"], "who": "who helped a friend",
        "paras": [
            ["One {time}, {h} was [walking|on {hhis} way] {toplace}.", "?*SCENERY", "?*WALKING",
             "Suddenly, {hhe} heard a [small|quiet|sad] voice. \"Help! [Please help me!|Is anyone there?|Can anybody hear me?]\"",
             "It was {af} named {f}. {Fhe} was stuck {spot}."],
            ["\"How did you get there?\" asked {h}.", "\"I was looking for {snack},\" said {f}, \"[and then I fell|and now I cannot move|and I did not look where I was going].\"",
             "?{H} thought for a moment.", "{Hhe} pulled, but {f} [did not move|was stuck fast]. {Hhe} pushed, but [that did not help|nothing happened].",
             "Then {h} had an idea. {Hhe} ran home and came back with {aobj}.",
             "?\"What will you do with that?\" asked {f}. \"You will see,\" said {h}."],
            ["With the {obj}, {hhe} [slowly|carefully|gently] got {f} out. [One, two, three... pop!|It took a long time, but it worked.|It was hard work.]",
             "\"[Thank you|You saved me|I am free], {h}!\" said {f}. \"[How can I thank you?|What can I do for you?|You are so clever!]\"",
             "\"[You can be my friend|Just be my friend|Come and have supper with me],\" said {h}.", "So they went home together and ate {food}."]],
        "facts": {"want": "{h} wanted to help {f}.", "problem": "{f} the {fk} was stuck {spot}.", "solve": "{h} got {f} out with the {obj}.",
                  "end": "{h} got {f} out, and they went home together and ate {food}.", "why": "worried|{f} was stuck {spot}"}},
    "friend": {
        "lesson": ["friends"], "who": "who had no friends",
        "paras": [
            ["But {h} was [lonely|often alone|sometimes sad], because {hhe} had no friends.", "?\"I wish I had someone to play with,\" {hhe} [said|thought|whispered].",
             "One {time}, {hhe} went {toplace}, [just to see something new|because {hhe} did not want to sit at home|with {aobj} under {hhis} arm].", "?*WALKING", "?*SCENERY"],
            ["There {hhe} saw {af}[ sitting all alone| hiding {spot}].", "The {fk} looked [shy|sad|lonely] too.",
             "At first, [neither of them said anything|both were too shy to speak|{h} wanted to run away].",
             "Then {h} took a deep breath. \"Hello,\" {hhe} said. \"My name is {h}. What is your name?\"", "\"I am {f},\" said {fthe} [softly|quietly|with a small smile].",
             "\"Would you like [some {snack}|to share my {snack}]?\" asked {h}. \"Yes, please!\" said {f}."],
            ["They sat down and ate together.", "Then they [played games|told stories|sang songs|played hide-and-seek] until [the sun went down|it was dark|the first star came out].",
             "?\"Do you like {like}?\" asked {h}. \"I love {like}!\" said {f}.", "\"Will you come back tomorrow?\" asked {f}.", "\"Yes,\" said {h}, \"tomorrow and [the day after|every day].\""]],
        "facts": {"want": "{h} wanted to find a friend.", "problem": "{h} was lonely, because {hhe} had no friends.", "solve": "{h} said hello to {f} the {fk}.",
                  "end": "{h} and {f} became friends and met again every day.", "why": "lonely|{hhe} had no friends"}},
    "fear": {
        "lesson": ["brave"], "who": "who was afraid of {fear}",
        "paras": [
            ["But {h} had a secret. {Hhe} was afraid of {fear}.", "[Because of that|So], {hhe} [never dared to|would never] {feartask}.",
             "?The others sometimes laughed at {hhim}, and that made {hhim} sad."],
            ["One {time}, {hhis} friend {f} the {fk} [did not come home|needed help|was in trouble] {inplace}.", "\"Somebody has to [help|go to] {f},\" said {h}, \"but I would have to {feartask}!\"",
             "{Hhis} [knees shook|heart beat fast|hands were cold].", "{H} thought of {f}, all alone {inplace}. \"I am afraid,\" {hhe} said, \"but I will try.\"",
             "All {hhe} had with {hhim} was {fearhelp}."],
            ["Step by step, {h} went {toplace}.", "?*SCENERY", "It was [scary|hard|not easy] at first. But soon {hhe} saw that [it was not so bad|nothing bad happened|it was not so terrible after all].",
             "[At last|Then] {hhe} found {f} {spot}.", "\"You came!\" said {f}. \"You are the bravest {hk} that I know.\"",
             "\"I was afraid all the time,\" said {h}. \"[That is what brave means|And still you came],\" said {f}[ and smiled|]."]],
        "facts": {"want": "{h} wanted to help {hhis} friend {f}.", "problem": "{h} was afraid of {fear}.", "solve": "{h} went step by step, with {fearhelp}.",
                  "end": "{h} found {f} and was not so afraid of {fear} any more.", "why": "afraid|{hhe} was afraid of {fear}"}},
    "build": {
        "lesson": ["patient"], "who": "who wanted to build a {build}",
        "paras": [
            ["{H} had a dream. {Hhe} wanted to build a {build}.", "?\"It will be the best {build} in the world,\" {hhe} said.",
             "One {time}, {hhe} began to work. {Hhe} [took some wood and nails|found paper and glue|drew a big plan|gathered everything {hhe} needed].",
             "But the first {build} [fell apart|fell over|was crooked|broke in two]. The second one [was too small|was too heavy|fell apart too|did not work].",
             "?\"I will never do it,\" said {h} and sat down on the ground."],
            ["*MEET", "\"What are you making?\" asked {f}.", "\"[I am trying to build|It should be] a {build},\" said {h}, \"but [it always breaks|it does not work|I keep making mistakes].\"",
             "{F} looked at it [from all sides|for a long time|carefully]. \"[You need something stronger|It needs something to hold it together|Something is missing],\" {fhe} said. \"I have {aobj} {inplace}. [Let us use it|That could help]!\"",
             "So they went {toplace} and brought back the {obj}."],
            ["They worked [all day|until the evening|side by side]. {H} [held|measured|painted] and {f} [hammered|tied|glued].", "?*TOGETHER",
             "[At last|In the evening|Finally], the {build} was ready, and this time it [did not fall apart|worked|was just right].",
             "\"We did it!\" [shouted|cried|said] {h}.", "[All the neighbours came to look|Everyone came to see it|They had a little party]."]],
        "facts": {"want": "{h} wanted to build a {build}.", "problem": "the first {build} broke, and the second one did too.", "solve": "{f} the {fk} helped, and they used the {obj}.",
                  "end": "{h} and {f} finished the {build} together, and it worked.", "why": "sad|the {build} kept breaking"}},
    "race": {
        "lesson": ["kind"], "who": "who wanted to win a race",
        "paras": [
            ["Once a year, there was a [big|great|famous] race {inplace}. The winner would get {aobj}.", "{H} wanted to win [more than anything|very much].",
             "{Hhe} practised every [day|morning|evening].", "?\"This year, I will win,\" {hhe} said."],
            ["On the day of the race, everybody [came|was there|was excited].", "?*SCENERY", "\"Ready, steady, go!\" Off they went! {H} was [fast|very fast|quick as the wind]. Soon {hhe} was in front.",
             "But then {hhe} heard a cry. {F}, {af}, had fallen and was lying {spot}.", "?The others ran past.",
             "{H} stopped. {Hhe} could see the finish. \"If I stop now, I will not win,\" {hhe} thought."],
            ["But {h} turned around. \"[Are you hurt|Can you stand|Give me your hand]?\" {hhe} asked. \"[My foot hurts|I cannot walk alone|It hurts a little],\" said {f}.",
             "So {h} helped {f}, and they walked slowly to the finish together. They were the very last.",
             "But [everyone cheered|everybody clapped|the crowd cheered] louder than ever. \"You are the real winner,\" said [the judge|the old judge|the mayor], and gave {h} the {obj}.",
             "?\"We will share it,\" said {h} to {f}."]],
        "facts": {"want": "{h} wanted to win the race.", "problem": "{f} the {fk} fell during the race.", "solve": "{h} stopped and helped {f}.",
                  "end": "{h} and {f} came in last, but {h} got the {obj} for being kind.", "why": "worried|{f} had fallen"}},
    "sound": {
        "lesson": ["careful", "brave"], "who": "who heard a strange sound",
        "paras": [
            ["One night, {h} [could not sleep|woke up|sat up in bed]. There was a strange sound: {sound}!", "?{Hhe} pulled the blanket over {hhis} head.",
             "\"[What could that be|Who is there|Is it a monster]?\" {hhe} whispered.", "{Sound}! There it was again."],
            ["{H} went to {hhis} friend {f}, {af}.", "\"I hear a sound every night,\" said {h}. \"It comes from {place}.\"",
             "\"Then we must go {toplace} and look,\" said {f}. {Fhe} took {aobj}, and off they went.", "?*TOGETHER", "It was [dark|very dark|cold and dark]. {Sound}! [The sound came nearer|It was very close now|They held hands]."],
            ["{F} [held up the {obj}|took one step|looked around the corner]. Then {fhe} began to laugh.", "\"Look, {h}! It is only {soundwhat}!\"",
             "{H} looked, and then {hhe} laughed too. \"And I thought it was a monster!\" {hhe} said.", "They [laughed|giggled] all the way home."]],
        "facts": {"want": "{h} wanted to know what the strange sound was.", "problem": "{h} heard a strange sound at night: {sound}.", "solve": "{h} and {f} went {toplace} and looked.",
                  "end": "the strange sound was only {soundwhat}, and they laughed all the way home.", "why": "afraid|{hhe} heard a strange sound at night"}},
    "gift": {
        "lesson": ["content"], "who": "who needed a birthday present",
        "paras": [
            ["Soon it was the birthday of {f} the {fk}, the best friend of {h}.", "{H} wanted to give {f} {aobj}, but {hhe} had no money.",
             "?{Hhe} counted {hhis} coins. There were only two.", "\"What can I give {fhim}?\" {hhe} [asked|thought|wondered]."],
            ["{H} went {toplace} to [think|look for an idea|look for a present].", "?*WALKING", "?*SCENERY",
             "[There were many pretty things|{Hhe} saw many things], but [all of them cost too much|nothing was right].", "Then {h} had an idea. {Hhe} went home and [worked all night|worked all evening|did not stop until midnight].",
             "{Hhe} made some {food} and wrote a [little song|poem|funny story] about {f}."],
            ["The next day, {h} gave {f} the present. {Hhis} hands shook a little. \"[It is not much|I made it myself|It is only small],\" {hhe} said.",
             "{F} [listened to every word|tasted the {food} and listened|was very quiet]. Then {fhe} [smiled|laughed|had a tear in {fhis} eye].",
             "\"[Nobody has ever made something for me|This is the best present of all|It is wonderful],\" said {f}. \"I do not need {aobj}. I have you.\"",
             "They ate the {food} together."]],
        "facts": {"want": "{h} wanted to give {f} a present.", "problem": "{h} had no money for {aobj}.", "solve": "{h} made {food} and wrote something for {f}.",
                  "end": "{f} loved the present, and they ate the {food} together.", "why": "worried|{hhe} had no money for a present"}},
    "share": {
        "lesson": ["share"], "who": "who did not want to share",
        "paras": [
            ["One {time}, {h} found a big basket of {snack} {inplace}.", "\"[These are all mine|They are all for me|I will not share them],\" {hhe} said, and hid the basket {spot}.",
             "{Hhe} ate and ate. But [soon {hhis} belly hurt|it was not much fun alone|something was missing]."],
            ["*MEET", "\"[I am so hungry,|I have not eaten today,|Do you have something to eat?]\" said {f}. \"[Could you give me a little?|Please, only one bite.]\"",
             "{H} looked at the basket. There was so much in it. But {hhe} said, \"No, I have nothing.\"", "{F} went away [sadly|slowly|with {fhis} head down].",
             "{H} did not feel good. The {snack} did not taste sweet any more."],
            ["So {h} ran after {f}. \"Wait!\" {hhe} [called|shouted]. \"I am sorry. I do have {snack}. Let us share them.\"",
             "They sat down together and ate. \"[They taste wonderful|These are the best {snack} in the world|Thank you],\" said {f}.",
             "And it was strange: now the {snack} tasted [twice as good|better than before|sweet again].", "?{F} gave {h} {aobj} to say thank you."]],
        "facts": {"want": "{h} wanted to keep all the {snack}.", "problem": "{h} did not want to share the {snack}.", "solve": "{h} ran after {f} and said sorry.",
                  "end": "{h} shared the {snack} with {f}, and they tasted better than before.", "why": "unhappy|{hhe} had not shared the {snack}"}},
    "treasure": {
        "lesson": ["content", "friends"], "who": "who found a treasure map",
        "paras": [
            ["One {time}, {h} found an old map {spot}. There was a [red|big|black] cross on it.", "\"[A treasure map|This is a treasure map]!\" {hhe} said. \"The treasure must be {inplace}!\"",
             "{Hhe} ran to {hhis} friend {f}, {af}. \"Will you come with me?\" asked {h}. \"[Of course|Yes|I would love to]!\" said {f}."],
            ["They packed some {snack} and {aobj}, and off they went {toplace}.", "?*TOGETHER", "?*SCENERY",
             "[First they had to climb over a fallen tree|First they had to cross a cold stream|First they had to find the way in the fog]. [Then it began to rain|Then they got lost|Then they heard a strange noise].",
             "\"Let us go home,\" said {f}. \"Only a little more,\" said {h}. \"[Look, there is the place|I can see it already|We are almost there]!\""],
            ["They [dug|searched|looked] for a long time. [At last|Then] they found a box. {H} opened it slowly.", "There was no gold in it. There was only a letter. It said: \"[The real treasure is the friend who came with you|If you found this together, you are rich|Look who is beside you. That is the treasure].\"",
             "{H} looked at {f}, and {f} looked at {h}. Then they both [laughed|smiled].", "They ate the {snack} and [watched the sunset|went home|told each other stories]."]],
        "facts": {"want": "{h} wanted to find a treasure.", "problem": "the way was long and hard.", "solve": "{h} and {f} followed the map together.",
                  "end": "they found a box with a letter, and learned that the real treasure was their friendship.", "why": "surprised|there was no gold in the box"}},
    "truth": {
        "lesson": ["honest"], "who": "who made a mistake",
        "paras": [
            ["One {time}, {h} was playing {inplace} with {aobj}. [It was great fun|{Hhe} was not careful|{Hhe} jumped and ran].", "Then it happened: {h} {mistake}!",
             "\"Oh no!\" said {h}. {Hhe} looked around. Nobody had seen it. So {hhe} ran away."],
            ["Later, {f} the {fk} came by. {F} [was sad|was upset|shook {fhis} head]. \"Somebody {mistake},\" {fhe} said. \"Do you know who it was?\"",
             "{Hhis} cheeks grew hot. \"No,\" said {h}[ quietly| and looked at the ground|].", "That night, {h} could not sleep. {Hhe} [turned this way and that way|thought and thought|counted sheep, but it did not help].",
             "?\"Why did I say that?\" {hhe} thought."],
            ["In the morning, {hhe} went to {f}. \"It was me,\" {hhe} said. \"I am the one who {mistake}. I am sorry.\"",
             "{F} was quiet for a moment. Then {fhe} said, \"[Thank you for telling me|That was brave of you|I am glad that you told me]. [Everyone makes mistakes|I am not angry any more|We can make it right together].\"",
             "Together they [took care of|made up for what had happened to] {mistakewhat}, and then they had {food}.", "{H} felt as light as a feather."]],
        "facts": {"want": "{h} wanted to hide what {hhe} had done.", "problem": "{h} {mistake} and did not tell the truth.", "solve": "{h} told {f} the truth and said sorry.",
                  "end": "{f} was not angry any more, and they had {food} together.", "why": "worried|{hhe} {mistake} and did not tell the truth"}},
    "wish": {
        "lesson": ["content", "home"], "who": "who found a magic {obj}",
        "paras": [
            ["One {time}, {h} found {aobj} {spot}. When {hhe} touched it, it began to [glow|shine|hum].",
             "\"I am a magic {obj},\" said a voice. \"You have [one wish|one wish, and only one]. Think well!\"", "?{H} almost fell over."],
            ["{H} thought and thought. \"I could wish for a [castle|mountain of gold|golden crown],\" {hhe} said. \"Or for all the {snack} in the world.\"",
             "{Hhe} went {toplace} to think. *MEET", "{F} was [cold|hungry|sad]. \"My home was blown away in the storm,\" said {f}. \"Now I have no place to sleep.\"",
             "{H} looked at the {obj}. Then {hhe} looked at {f}."],
            ["\"I know my wish,\" said {h}. \"I wish for a warm home for {f}.\"", "The {obj} [glowed|shone|hummed] one last time, and [there it was|then there stood]: a small [house|home] with a round door and smoke over the roof.",
             "\"[Is it really mine|For me]?\" asked {f}. \"[Yes|It is yours],\" said {h}.", "{F} invited {h} in, and they ate {food} by the fire.", "?The {obj} was never magic again, but {h} kept it all the same."]],
        "facts": {"want": "{h} wanted to make a good wish.", "problem": "{f} the {fk} had lost {fhis} home in a storm.", "solve": "{h} used the only wish to help {f}.",
                  "end": "{f} got a warm home, and they ate {food} by the fire.", "why": "surprised|the {obj} could talk"}},
    "lostway": {
        "lesson": ["home", "brave"], "who": "who got lost",
        "paras": [
            ["One {time}, {h} [went for a walk|followed a butterfly|was looking for {snack}] and did not look at the path.", "When {hhe} looked up, {hhe} was {inplace}, and [nothing looked the same|everything was strange|{hhe} did not know the way home].",
             "?*SCENERY", "\"I am lost,\" said {h} [softly|and sat down|in a small voice]. A tear ran down {hhis} [cheek|nose]."],
            ["*MEET", "*HELLO", "\"I am lost. I want to go home,\" said {h}.", "\"What does your home look like?\" asked {f}. \"I live {home},\" said {h}.",
             "\"[I know where that is|I have seen that place|Then I know the way]!\" said {f}. \"[Come with me|Follow me].\""],
            ["?*TOGETHER", "It began to get dark, so {f} [lit a candle|took {aobj} and went in front|held on to {h}].", "They went [over a bridge and up a hill|through a gate and along a wall|past a mill and over a field].",
             "And there it was: {hhis} home! [There was light in the window|It had never looked so beautiful].", "\"Thank you, {f},\" said {h}. \"Please come in and have some {food}.\" And {f} stayed until [late|the moon was high]."]],
        "facts": {"want": "{h} wanted to go home.", "problem": "{h} was lost {inplace}.", "solve": "{f} the {fk} knew the way and went with {hhim}.",
                  "end": "{h} came home, and {f} stayed for some {food}.", "why": "sad|{hhe} was lost"}},
    "learn": {
        "lesson": ["patient"], "who": "who wanted to learn to {skill}",
        "paras": [
            ["{H} wanted to learn to {skill}. [All the others could do it already|{Hhe} dreamed of it every night|It looked so easy].", "One {time}, {hhe} went {toplace} to [try|practise].",
             "But it was [hard|not easy|harder than it looked]. {Hhe} tried once. {Hhe} tried twice. [Nothing worked|It went wrong every time|{Hhe} fell on {hhis} nose].",
             "?Somebody laughed, and {h} wanted to hide."],
            ["*MEET", "\"I cannot {skill},\" said {h}. \"[I am too small|I will never learn it|Maybe I am not good at anything].\"",
             "\"I could not do it at first either,\" said {f}. \"[I tried a hundred times|I practised every day|I fell down many times]. Let me show you how.\"",
             "{F} showed {h} how to begin: [slowly, one thing after the other|with closed eyes and a deep breath|first a little, then a little more]."],
            ["Every day, they met {inplace} and practised.", "?*TOGETHER", "[On the tenth day|After a week|One {time}], something happened. {H} [took a deep breath|closed {hhis} eyes|tried once more], and then {hhe} {skilled}[, all alone|, just like that|]!",
             "\"I can do it! I can {skill}!\" [shouted|cried|called] {h}.", "\"I knew it,\" said {f}[, and clapped|, and was proud|], and gave {hhim} {aobj} as a prize."]],
        "facts": {"want": "{h} wanted to learn to {skill}.", "problem": "{h} tried again and again, but could not {skill}.", "solve": "{f} the {fk} showed {hhim} how, and they practised every day.",
                  "end": "{h} could {skill} at last, and {f} gave {hhim} {aobj}.", "why": "sad|{hhe} could not {skill}"}},
    "fix": {
        "lesson": ["kind", "patient"], "who": "who repaired the {broken}",
        "paras": [
            ["One {time}, the {broken} stopped working. [Everyone was worried|Nobody knew what to do|People stood around it and shook their heads].",
             "\"[I will try to repair it|Maybe I can help|Let me have a look],\" said {h}.", "\"You? [But you are only a {hk}|That is too hard for you]!\" [the others said|they said]. But {h} did not listen."],
            ["{H} looked inside. One part was missing.", "\"I have seen such a part {inplace},\" said {f}, {af}. \"It looks like {aobj}.\"", "So {h} and {f} went {toplace}.", "?*TOGETHER",
             "They searched all day. [At last|Then] they found the {obj} {spot}."],
            ["{H} put the {obj} into the {broken}, [turned a screw|tied a knot|gave it a small push] and [waited|held {hhis} breath|counted to three].", "First nothing happened. Then there was a click, and the {broken} worked again!",
             "[Everyone cheered|Everybody clapped and danced|The whole town was happy].", "\"How did you do it?\" they asked. \"Not alone,\" said {h}, \"[{f} helped me|I had {f}].\"", "?That evening, there was {food} for everybody."]],
        "facts": {"want": "{h} wanted to repair the {broken}.", "problem": "the {broken} had stopped working.", "solve": "{h} and {f} found {aobj} {spot} and put it in.",
                  "end": "the {broken} worked again, and everyone was happy.", "why": "worried|the {broken} had stopped working"}},
    "seed": {
        "lesson": ["patient"], "who": "who planted a seed",
        "paras": [
            ["One {time}, {h} found a [tiny|small|strange] seed {spot}. {Hhe} planted it {inplace}[ and gave it water|].", "Every day, {hhe} [looked|came to see], but nothing grew.",
             "?\"Grow, little seed,\" {hhe} said, but the seed was silent.", "After [a week|ten days|two weeks], {h} wanted to give up."],
            ["*MEET", "\"Nothing grows here,\" said {h}. \"[I think the seed is asleep|It is a bad seed|I did something wrong].\"", "\"[Seeds need time|Give it time],\" said {f}. \"[Water, sun and a little patience|It needs sun, rain and somebody who waits].\"",
             "So they waited together. {F} brought {aobj}, and {h} told stories to the seed.", "?*SCENERY"],
            ["Then, one morning, there was a small green leaf! Day by day, it grew [higher|taller and taller].", "In the summer, it was a [tall tree full of {snack}|bush full of {snack}|big plant with flowers of every colour].",
             "\"[Look how big it is|It was worth the wait]!\" said {h}.", "They invited everybody {toplace}, and there was {food} for all."]],
        "facts": {"want": "{h} wanted the seed to grow.", "problem": "the seed did not grow for a long time.", "solve": "{h} and {f} waited together and took care of the seed.",
                  "end": "the seed grew big, and they invited everybody and ate {food}.", "why": "sad|the seed did not grow"}},
    "storm": {
        "lesson": ["brave", "home", "friends"], "who": "who was caught in a storm",
        "paras": [
            ["One {time}, {h} and {hhis} friend {f} the {fk} set off {toplace}. They took {aobj} and a bag of {snack}.", "?*TOGETHER", "?*SCENERY", "\"What a nice trip,\" said {f}."],
            ["But then [dark clouds came|the sky turned black|the wind began to howl]. [Thunder rolled|Lightning flashed|The rain fell in buckets]. It was a big storm!",
             "\"[We must find shelter!|We cannot go on!|What shall we do?]\" [cried|shouted] {f}.", "{H} looked around. \"There, {spot}! We can hide there,\" {hhe} said. They ran as fast as they could.",
             "They sat close together[ and shook| in the dark|]. {F} was afraid. So {h} [sang a song|told a funny story|held {fhim} tight], and they shared the {snack}."],
            ["[After a while|At last|An hour later], the storm was over. The sun came out, and [a rainbow stood in the sky|everything shone|the air was fresh and clean].", "\"Thank you, {h},\" said {f}. \"With you I was not so afraid.\"",
             "They [lost the {obj} in the storm, but they did not mind|still had the {obj}, only wet].", "They went on {toplace}, and in the evening they were home again and ate {food}."]],
        "facts": {"want": "{h} and {f} wanted to go {toplace}.", "problem": "a big storm came.", "solve": "they hid {spot} until the storm was over.",
                  "end": "the storm was over, the sun came out, and they came home safely and ate {food}.", "why": "worried|there was a big storm"}},
    "party": {
        "lesson": ["share", "friends", "kind"], "who": "who gave a party",
        "paras": [
            ["One {time}, {h} decided to give a party {inplace}. {Hhe} wanted to make {food} for everyone.", "{H} [wrote letters to all {hhis} friends|invited everybody {hhe} knew].",
             "But when {hhe} began to cook, {hhe} saw that [there were no more {snack} in the house|the {snack} were all gone].", "?\"Without {snack} there is no {food},\" {hhe} [sighed|said]."],
            ["So {h} went out to get some {snack}.", "?*WALKING", "*MEET", "\"I need {snack} for my party,\" said {h}, \"but I cannot find any.\"",
             "\"I have a whole basket of {snack},\" said {f}, \"but nobody ever invites me to a party.\"", "\"Then you are invited!\" said {h}."],
            ["Together they cooked {food}. It smelled [wonderful|so good|so good that the whole street noticed].", "Then the guests came[, one after the other| with flowers and songs|]. One of them brought {aobj}.",
             "They [danced|sang|played games|laughed] until late at night. \"This is my first party,\" said {f}, \"and it is the best.\"", "\"[It is our party|I could not have done it without you],\" said {h}."]],
        "facts": {"want": "{h} wanted to give a party and make {food}.", "problem": "there were no {snack} in the house.", "solve": "{f} the {fk} had a whole basket of {snack} and came to the party.",
                  "end": "everybody danced and ate {food}, and {f} was at a party for the first time.", "why": "worried|there were no {snack}"}},
    "discover": {
        "lesson": ["honest", "kind", "share"], "who": "who found a {obj}",
        "paras": [
            ["One {time}, {h} was {inplace} when {hhe} saw something {spot}.", "?*SCENERY", "It was {aobj}! {H} had never seen such a {obj} before.",
             "\"[Whose {obj} is this|Who left this {obj} here|Where does this {obj} come from]?\" {hhe} [asked|wondered]. But nobody was there.",
             "?{H} looked at it from all sides. \"I would like to keep it,\" {hhe} thought."],
            ["{Hhe} played with the {obj} all day. But then {hhe} thought, \"Somebody may be looking for it.\"", "So {h} took the {obj} and asked everyone. \"Is this your {obj}?\" \"No,\" said [the baker|the old woman|the postman]. \"No,\" said [the teacher|the fisherman|the children].",
             "*MEET", "{F} looked very sad. \"I have lost my {obj},\" said {f}. \"I cannot find it anywhere.\""],
            ["\"Is it this one?\" asked {h}, and held up the {obj}.", "\"[Yes, that is it|My {obj}|You found it]!\" [cried|shouted] {f}, and [jumped for joy|danced around {h}|hugged {h}].",
             "\"[You could have kept it|How honest you are|You are very kind],\" said {f}. \"Let us [play with it together|share it].\"", "?They laughed and talked until the evening.",
             "So the {obj} belonged to both of them, and they ate {food} together."]],
        "facts": {"want": "{h} wanted to know whose {obj} it was.", "problem": "{h} found {aobj}, but it belonged to somebody else.", "solve": "{h} asked everyone and gave the {obj} back to {f} the {fk}.",
                  "end": "{f} got the {obj} back, and they shared it and ate {food} together.", "why": "surprised|{hhe} had never seen such a {obj} before"}},
    "star": {
        "lesson": ["kind", "home"], "who": "who found a fallen star",
        "paras": [
            ["One night, {h} saw a light fall from the sky. It came down {inplace}.", "?\"What was that?\" {hhe} [whispered|asked].", "{H} ran {toplace}, and there, {spot}, lay a little star. It was [crying|shaking with cold|very pale].",
             "\"I fell out of the sky,\" said the star. \"[How will I get home?|I want to go back to my mother, the moon.]\""],
            ["{H} put the star into {aobj} and kept it warm. Then {hhe} went to {hhis} friend {f}, {af}.", "\"How can we bring a star home?\" asked {h}.", "{F} thought for a long time. \"[We must go to the highest place that we can find|It needs somebody to throw it very high|We must wait for the wind],\" {fhe} said.",
             "So they climbed and climbed, all night long. *TOGETHER"],
            ["At the top, the wind was strong. \"Are you ready, little star?\" asked {h}. \"I am ready,\" said the star.", "\"One, two, three!\" {H} and {f} threw the star as high as they could. It flew up and up, until it was back in its place.",
             "Since then, there is one star that [blinks|shines a little brighter] when {h} looks up.", "They ate {food} and watched the sky."]],
        "facts": {"want": "{h} wanted to bring the little star home.", "problem": "a little star had fallen from the sky.", "solve": "{h} and {f} the {fk} climbed up and threw the star back into the sky.",
                  "end": "the star was back in its place, and {h} and {f} ate {food} and watched the sky.", "why": "worried|a little star had fallen from the sky"}},
    "nest": {
        "lesson": ["kind"], "who": "who found a baby bird",
        "paras": [
            ["One {time}, {h} found a baby bird {inplace}. It had fallen out of its nest and sat {spot}.", "\"Peep, peep!\" said the baby bird. It was [cold|hungry|too small to fly].", "?\"Poor little thing,\" said {h}."],
            ["{H} gave it [a drop of water|some crumbs] and carried it carefully in {aobj}. But the nest was [high up in a tree|on a very high branch].", "\"I cannot climb so high,\" said {h}. \"Who can help?\"", "*MEET",
             "\"[I am good at climbing|I know what to do|I have a long rope],\" said {f}. \"[You hold the {obj}, and I go up|Let us do it together].\""],
            ["They were very careful. Up they went, [branch by branch|slowly, slowly|one step at a time]. At last, the baby bird was back in its nest.", "The mother bird sang a song of joy. \"[Thank you, thank you|I will never forget this]!\" she sang.",
             "\"You are a good {hk},\" said {f}. \"And you are a good {fk},\" said {h}.", "Then they sat down under the tree and ate {snack}. *SCENERY"]],
        "facts": {"want": "{h} wanted to bring the baby bird back to its nest.", "problem": "a baby bird had fallen out of its nest.", "solve": "{f} the {fk} helped {h} to climb up to the nest.",
                  "end": "the baby bird was back in its nest, and {h} and {f} ate {snack} under the tree.", "why": "worried|a baby bird had fallen out of its nest"}},
    "sleep": {
        "lesson": ["friends", "home", "patient"], "who": "who could not sleep",
        "paras": [
            ["One evening, {h} lay in bed and could not sleep. {Hhe} [counted sheep|drank warm milk|turned the pillow around], but it did not help.", "?*SCENERY", "\"I am not tired at all,\" {hhe} said. So {hhe} took {aobj} and went out into the night."],
            ["{H} went {toplace}. Everything looked different in the moonlight. *MEET", "\"Why are you not asleep?\" asked {f}.", "\"I cannot sleep,\" said {h}. \"And you?\" \"I cannot sleep either,\" said {f}.",
             "So they sat down {inplace} and looked at the stars. {F} told {h} about {like}, and {h} told {f} about {like2}."],
            ["They talked [softly|quietly], and their words became slower and slower.", "\"Listen,\" said {f}, \"[how quiet the night is|the wind is singing a song|even the trees are asleep].\" {H} yawned. Then {f} yawned too.",
             "\"Good night, {f},\" said {h}. \"Good night, {h},\" said {f}.", "{H} walked home, put the {obj} beside the bed and closed {hhis} eyes. [One minute later|Soon], {hhe} was fast asleep."]],
        "facts": {"want": "{h} wanted to sleep.", "problem": "{h} could not sleep.", "solve": "{h} met {f} the {fk}, and they looked at the stars and talked quietly.",
                  "end": "{h} went home and fell fast asleep.", "why": "awake|{hhe} was not tired at all"}},
    "sick": {
        "lesson": ["kind", "friends"], "who": "who took care of a sick friend",
        "paras": [
            ["Every [Sunday|Friday|evening], {h} and {hhis} friend {f} the {fk} met {inplace}. But one {time}, {f} did not come.", "{H} [waited and waited|waited for an hour|looked at the clock again and again].", "?\"{F} is never late,\" {hhe} said. \"Something must be wrong.\"", "So {h} went to {f}'s house and knocked on the door."],
            ["{F} was in bed, with a [red nose|thick scarf|hot forehead]. \"I am sick,\" said {f} [in a small voice|and coughed|softly]. \"I cannot come out and play.\"", "\"Then I will take care of you,\" said {h}. {Hhe} ran home and came back with {food} and {aobj}.", "?\"[You need to eat|Food first],\" {hhe} said, \"and then you need to rest.\""],
            ["All [day|afternoon] long, {h} sat beside the bed. {Hhe} [told stories|sang quiet songs|read from a book] about {like}.", "?{F} laughed, and then coughed, and then laughed again.", "The next morning, {f} felt [better|much better|a little better]. \"It was not the {food},\" said {f}. \"It was you.\"",
             "A few days later, they met {inplace} again, [and everything was as before|and {f} ran faster than ever|and the sun was shining]."]],
        "facts": {"want": "{h} wanted to help {hhis} sick friend {f}.", "problem": "{f} the {fk} was sick and could not come.", "solve": "{h} brought {food} and {aobj}, and stayed beside the bed.",
                  "end": "{f} got well, and they met {inplace} again.", "why": "worried|{f} did not come"}},
    "firstday": {
        "lesson": ["brave", "friends"], "who": "who had a first day at school",
        "paras": [
            ["One {time}, it was {h}'s first day at school. The school was {inplace}.", "?\"I do not want to go,\" said {h} at breakfast.", "{H} took {hhis} bag, {aobj} and some {snack}. {Hhis} belly felt [funny|strange] all the way.", "\"What if nobody likes me?\" {hhe} thought."],
            ["At school, everyone was [loud|talking and laughing]. {H} stood by the wall and looked at {hhis} feet.", "Then {hhe} saw somebody else by the wall. It was {af}.", "\"Is it your first day too?\" asked {h}. {Fthe} nodded. \"I am {f},\" {fhe} said, \"and I am a little afraid.\"", "\"Me too,\" said {h}. \"Would you like some {snack}?\""],
            ["They sat next to each other all day. They learned [a song|to count|to write their names], and {h} showed {f} the {obj}.", "?*SCENERY", "When the bell rang, {h} was [almost sad|surprised]. \"Is it over already?\" {hhe} asked.",
             "\"[How was it|How was school]?\" they asked at home. \"[Good|Wonderful],\" said {h}. \"I have a friend. Can I go again tomorrow?\""]],
        "facts": {"want": "{h} wanted somebody at school to like {hhim}.", "problem": "it was {h}'s first day at school, and {hhe} was afraid.", "solve": "{h} shared some {snack} with {f} the {fk}, who was afraid too.",
                  "end": "{h} and {f} became friends, and {h} wanted to go to school again.", "why": "afraid|it was {hhis} first day at school"}},
    "quarrel": {
        "lesson": ["friends", "share", "honest"], "who": "who had a quarrel",
        "paras": [
            ["{H} and {f} the {fk} were best friends. They did everything together.", "One {time}, they found {aobj} {inplace}. \"I saw it first!\" said {h}. \"No, I saw it first!\" said {f}.", "They pulled and pulled, until [{h} fell on {hhis} back|both of them fell down]. \"I will never play with you again!\" [cried|shouted] {f}, and ran away."],
            ["Now {h} had the {obj} all alone. But it was not [much fun|as nice as before]. {Hhe} [ate some {snack}|looked out of the window|tried to sing], but {hhe} only thought of {f}.", "?*SCENERY", "\"What is {aobj} without a friend?\" {hhe} [asked|thought|said]."],
            ["So {h} took the {obj} and went to {f}. On the way, {hhe} met {f}, who was just coming to {hhim}!", "\"I am sorry,\" said {h}. \"I am sorry too,\" said {f} at the same time. Then they both had to laugh.",
             "\"[You can have it on Mondays, and I on Tuesdays|Let us share it|It belongs to both of us],\" said {h}. And they [played|sat together] {inplace} until it was time for {food}."]],
        "facts": {"want": "{h} wanted to have {aobj}.", "problem": "{h} and {f} the {fk} had a quarrel about {aobj}.", "solve": "{h} and {f} both said sorry.",
                  "end": "they shared the {obj} and were friends again.", "why": "sad|{hhe} had a quarrel with {f}"}},
    "boattrip": {
        "lesson": ["home", "brave", "friends"], "who": "who sailed across the sea",
        "paras": [
            ["{H} had always wanted to see what was on the other side of the [sea|big lake|water].", "One {time}, {hhe} found an old boat [by the water|in the harbour|on the beach|in the reeds]. \"[Who will come with me|I need somebody to sail with me],\" {hhe} said. \"I will!\" said {f}, {af}.", "They took {aobj}, a blanket and a lot of {snack}, and off they sailed."],
            ["[At first, the water was calm and blue.|The waves were small, and the sun was warm.|The boat rocked gently.]", "?{F} told a funny story, and {h} laughed.", "?They counted the seagulls and sang old songs.", "But in the night, [a thick fog came|the waves grew higher and higher|the boat began to leak]. \"[Where are we|What shall we do|Will we ever get home]?\" asked {f}.", "{H} held on tight. {Hhe} used the {obj} to [show the way|hold the sail|close the hole in the boat]. \"[Look for the stars|Hold my hand|We can do it together],\" said {h}."],
            ["In the morning, they saw land. It was {place}! [They had never seen anything so beautiful.|Everything there was new.|It was even better than they had dreamed.]", "They went {toplace}, ate their {snack} and [looked around all day|slept in the sun|talked to everyone they met].",
             "\"It is lovely here,\" said {h}, \"but I miss home.\" So they sailed back, and {h} told everyone what they had seen."]],
        "facts": {"want": "{h} wanted to see the other side of the water.", "problem": "in the night, the trip became dangerous.", "solve": "{h} used the {obj} and did not give up.",
                  "end": "they came {toplace}, and then they sailed home.", "why": "worried|the trip was dangerous at night"}},
}
LISTS = {"SCENERY": SCENERY, "WALKING": WALKING, "TOGETHER": TOGETHER, "MEET": MEET, "HELLO": HELLO}

EPILOGUES = [
    "The next day, {h} and {f} met again {inplace}. They [played|laughed|talked] all day long. [In the evening|Then] they ate {food} and made a new plan.",
    "After that, {h} went to sleep. In a dream, {hhe} saw {place} again. When {hhe} woke up, {f} was already at the door. \"[Come|Get up]! A new day is waiting,\" said {f}.",
    "A week later, {h} visited {f}. \"Do you remember that day?\" asked {h}. \"I will never forget it,\" said {f}. They sat together and ate {food}.",
    "{H} told everyone at home what had happened. They listened with wide eyes. Then they all wanted to meet {f}, and so {f} came for supper the very next day.",
    "Winter came, and it was cold outside. But {h} and {f} sat by the fire, drank cocoa and told the story again and again.",
    "Some time later, {f} needed help, and {h} was there at once. \"That is what friends are for,\" said {h}.",
    "{H} and {f} went {toplace} once more. This time they took {snack} with them and stayed until the stars came out.",
    "In the end, {h} wrote the whole story into a little book. {F} drew the pictures. It is still on the shelf today.",
]


def make_story(rng, hero=None, friend=None, thing=None, place=None, plot=None, adjective=None, name=None,
               pronoun=None, friend_name=None, length=None, snack=None):
    """Draws a world, then tells it. What is given is kept: the kind of hero or friend, the thing, the place, the plot."""
    story = Story()
    c = story.context
    plots = list(PLOTS)
    hero = hero or random_kind(rng)
    story.plot = plot = plot or W.favourite(rng, plots, hero, 0.35)
    p = PLOTS[plot]
    put_character(c, "h", hero, rng, adjective, name, pronoun)
    if friend is None:
        while True:
            r = rng.random()
            friend = W.favourite(rng, W.ANIMALS if r < 0.7 else W.PEOPLE if r < 0.85 else W.FANTASY, hero)
            if friend != hero and friend not in hero and hero not in friend:
                break
    put_character(c, "f", friend, rng, name=friend_name, avoid_name=c["h"], avoid_pronoun=c["hhe"])
    things = W.THINGS_FOR.get(plot, W.OBJECTS)
    c["obj"] = thing or W.favourite(rng, things, hero)
    while c["obj"] in (hero, friend) and thing is None:
        c["obj"] = rng.choice(things)
    c["aobj"] = "a " + (rng.choice(W.OBJECT_ADJ) + " " if rng.random() < 0.75 else "") + c["obj"]
    where, preposition = place or W.favourite(rng, FAR_SHORES if plot == "boattrip" else W.PLACES_FOR.get(plot, W.PLACES), hero)
    c["place"], c["inplace"], c["toplace"] = where, preposition + " " + where, "to " + where
    c["home"] = W.favourite(rng, W.HOMES, hero)
    while place is None and where.split()[-1] in c["home"]:
        c["home"] = rng.choice(W.HOMES)
    favourite = lambda options, what: W.favourite(rng, options, hero + what)
    c["spot"] = favourite(W.SPOTS, "spot")
    c["weather"] = favourite(W.WEATHER, "weather")
    c["time"] = favourite(W.TIMES, "time")
    c["food"] = favourite(W.FOODS, "food")
    c["snack"] = snack or favourite(W.SNACKS, "snack")
    c["like"], c["trait"] = favourite(W.LIKES, "like"), favourite(W.TRAITS, "trait")
    c["like2"] = rng.choice([x for x in W.LIKES if x != c["like"]])
    c["trait2"] = rng.choice([x for x in W.TRAITS if x != c["trait"]])
    c["fear"], c["feartask"], c["fearhelp"] = favourite(W.FEARS, "fear")
    c["skill"], c["skilled"] = favourite(W.SKILLS, "skill")
    c["build"] = thing if thing and plot == "build" else favourite(W.BUILDS, "build")
    if thing and plot == "build":
        c["obj"] = rng.choice(things)
        c["aobj"] = "a " + rng.choice(W.OBJECT_ADJ) + " " + c["obj"]
    c["broken"] = favourite(W.BROKEN, "broken")
    c["sound"], c["soundwhat"] = favourite(W.SOUNDS, "sound")
    c["mistake"], c["mistakewhat"] = favourite(W.MISTAKES, "mistake")
    c["lesson"] = pick(rng, W.LESSONS[pick(rng, p["lesson"])])

    length = length or rng.choice(("short", "normal", "normal", "long"))
    chance = {"short": 0.1, "normal": 0.5, "long": 0.95}[length]

    nicknames = hero not in friend and friend not in hero

    def say(template):
        if nicknames and rng.random() < 0.25:  # now and then the kind instead of the name
            which = rng.choice("hf")
            template = _speaker.sub(lambda m: m.group(0).replace("{%s}" % which, "the {%sk}" % which), template, count=1)
        return expand(template, c, rng)

    intro = [say(pick(rng, OPENINGS))]
    c["told_like"] = ""
    if length != "short" or rng.random() < 0.3:
        if rng.random() < 0.6 or length == "long":
            intro.append(say(pick(rng, TRAIT_LINES)))
        if rng.random() < 0.6 or length == "long":
            intro.append(say(pick(rng, LIKE_LINES)))
            c["told_like"] = intro[-1]
    paragraphs = [intro]
    used = set()
    for lines in p["paras"]:
        sentences = []
        for line in lines:
            if line.startswith("?"):
                if rng.random() > chance:
                    continue
                line = line[1:]
            before, star, which = line.partition("*")
            if before:
                sentences.append(say(before.strip()))
            if star:
                options = [t for t in LISTS[which] if t not in used]
                template = pick(rng, options)
                used.add(template)
                sentences.append(say(template))
        paragraphs.append(sentences)
    end = []
    if rng.random() < 0.6:
        end.append(say(pick(rng, LEARNED)))
        c["told_lesson"] = "yes"
    if not end or rng.random() < 0.75:
        end.append(say(pick(rng, ENDINGS)))
    if rng.random() < 0.25:
        end.append("The end.")
    if length == "short" or rng.random() < 0.3:
        paragraphs[-1] += end
    else:
        paragraphs.append(end)
    if rng.random() < 0.5:  # join the introduction to the first paragraph
        paragraphs[0:2] = [paragraphs[0] + paragraphs[1]]
    story.paragraphs = [tidy(" ".join(s for s in para if s)) for para in paragraphs]
    story.facts = {key: value.split("|") for key, value in p["facts"].items()}
    return story


def title(story, rng):
    return tidy(expand("[The {hadj} {hk}|{h} the {hk}|{h} and {f}|The {hk} and the {fk}|{h} and the {fk}|The {hk} {inplace}|The story of {h}|A story about {ah}]", story.context, rng))


def fact(story, key, rng):
    """One fact as a whole sentence, say fact(story, "end", rng)."""
    return tidy(expand(story.facts[key][0], story.context, rng))


def opening_clause(story, rng):
    """How a prompt could name the story's plot: "who lost her red kite"."""
    return expand(PLOTS[story.plot]["who"], story.context, rng)
