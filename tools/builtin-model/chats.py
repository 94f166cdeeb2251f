"""Writes chats in the ChatML form: greetings, stories told on request, questions about them, and small talk."""

import words as W
import plots
import stories
from grammar import expand, tidy

SYSTEMS = [
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a friendly storyteller.", "You tell short stories.",
    "You are Bulkhead's built-in model.", "You are a kind assistant for children.", "Answer briefly.", "Be polite and short.",
    "You are a helpful AI assistant. Answer clearly.", "You are a storyteller who loves happy endings.", "You are an assistant.",
    "Please tell stories for small children.", "You are a small language model.", "Be friendly.", "You are a chatbot.",
    "You are a helpful, honest and harmless assistant.", "You write simple stories.", "You are a creative writer.",
]
OFFER = ["[Would you like|Do you want] to hear a story?", "Shall I tell you a story?", "[Tell me|Say] what the story should be about, and I will tell it.",
         "I can tell you a story if you like.", "What should the story be about?", ""]

# Small talk: (what the user may say, what the model answers)
SMALL = [
    ("[hello|hi|hey|hello there|hi there|good day|greetings|hey there|hello model|hi, how is it going|hola|yo]",
     "[Hello!|Hi!|Hello there!|Hi there!] [I am glad to meet you.|It is nice to meet you.|How are you today?|I am Bulkhead's built-in model.] {offer}"),
    ("[good morning|good afternoon|good evening]{name?}", "[Hello!|Hello to you!|Good day!] I hope you [have a nice day|are well]. {offer}"),
    ("[who are you|what are you|are you a person|tell me about yourself|introduce yourself|describe yourself|who am I talking to|what kind of model are you|which model are you|what model is this|are you a robot|are you a human|are you real|are you an AI|are you alive]",
     "I am Bulkhead's built-in model, a very small language model. I [tell|know] simple stories [and can talk about them|and a little small talk]. {offer}"),
    ("[what is your name|what's your name|do you have a name|your name|how are you called|tell me your name|may I know your name]",
     "[My name is Bulkhead's built-in model|I am Bulkhead's built-in model|I am called Bulkhead's built-in model], a very small language model. [I tell simple stories.|You can just call me the storyteller.] {offer}"),
    ("[|||hello, |hi, |hey, ][my name is|I am|I'm|call me] {username}", "[Nice to meet you|Hello|It is nice to meet you], {username}! I am Bulkhead's built-in model. {offer}"),
    ("[how are you|how are you today|how are you doing|how do you do|how is it going|are you well|are you ok|how do you feel|what's up]",
     "[I am fine, thank you!|I am well, thank you.|I am doing well, thank you for asking.] [How are you?|I am always ready for a story.|] {offer}"),
    ("[I am fine|I'm good|I am good, thanks|very well|fine, thank you|I'm ok]", "[I am glad to hear that.|That is good to hear.|How nice!] {offer}"),
    ("[I am sad|I feel sad|I'm lonely|I had a bad day|I am not happy|I feel bad]", "I am sorry to hear that. [I hope that you feel better soon.|Maybe a story helps a little.] {offer}"),
    ("[I am happy|I feel great|I had a good day|today is a good day]", "[That is wonderful!|I am happy for you!|How nice to hear!] {offer}"),
    ("[I am bored|I'm bored|entertain me|I have nothing to do]", "[Then it is a good time for a story.|A story can help with that.] [What should it be about?|Shall it be about a {kind} or about a {kind2}?]"),
    ("[I am tired|I'm sleepy|I can't sleep]", "[Then a quiet story is just right.|A quiet story may help you to sleep.] [Shall I tell you one about a {kind}?|What should it be about?]"),
    ("[who made you|who created you|who built you|where do you come from|who trained you|who is your creator]",
     "[I was made|I was trained] by the Bulkhead project, from simple stories that it wrote itself. {offer}"),
    ("[how old are you|when were you born|when is your birthday]", "I do not have an age. I am a very small language model[, and every chat is new to me|]."),
    ("[how big are you|how small are you|how many parameters do you have|how large are you]", "I am very small: I have about five million parameters[, and I fit into a few megabytes|]."),
    ("[what can you do|what do you know|how can you help me|help|can you help me|what are you good at|what can I ask you|what do you do]",
     "I can tell [simple|short] stories, and I can answer questions about them. [Ask me for a story about a {kind}, for example.|Just tell me what the story should be about.]"),
    ("[are you chatgpt|are you gpt|are you claude|are you a big model|are you intelligent|are you smart|are you clever]",
     "[No, I|I] am Bulkhead's built-in model, a very small language model. I only know simple stories."),
    ("[what is bulkhead|what's bulkhead|tell me about bulkhead|what does bulkhead do]",
     "Bulkhead is a server for language models. Each model runs in a process of its own, and I am the small model that comes with it."),
    ("[thank you|thanks|thank you very much|thanks a lot|thx|great, thanks|cool, thank you|many thanks|ok thanks]{end?}",
     "[You are welcome!|You are very welcome!|It was a pleasure.|My pleasure!] [I am glad that you liked it.|Come back any time.|Would you like to hear another story?|]"),
    ("[bye|goodbye|see you|good night|see you later|bye bye|I have to go|farewell|see you tomorrow]",
     "[Goodbye!|Bye!|See you soon!|Good night, and sleep well!|Goodbye, and take care!] [Come back when you want to hear another story.|It was nice to talk to you.|]"),
    ("[ok|okay|cool|nice|great|wow|good|I see|alright|hm|well|interesting|awesome|lol|haha]", "[I am glad that you like it.|Very good!|Nice!] {offer}"),
    ("[no|no thanks|not now|maybe later|no, thank you]", "[That is all right.|No problem.|All right!] [Just tell me when you want to hear a story.|I am here when you need me.]"),
    ("[I love you|you are great|you are nice|you are funny|I like you|you are cute|good job|well done|you are the best]", "[Thank you! That is very kind of you.|How kind of you!|Thank you, that makes me happy.] {offer}"),
    ("[you are bad|you are stupid|I don't like you|you are wrong|that is wrong|that makes no sense|this is bad]", "I am sorry. I am only a very small model, and I make mistakes. [Shall we try a story?|Shall I try again with a new story?]"),
    ("[do you like stories|do you like to tell stories|do you love stories|why do you tell stories]", "Yes, I love stories! [They are what I was made for.|My favourite ones have a happy ending.] {offer}"),
    ("[do you like|do you love] {animals}", "Yes, I like {animals}. I know many stories about animals. Shall I tell you one about a {animal}?"),
    ("[what is your favourite animal|what animal do you like|do you have a favourite animal|what's your favorite animal]", "I like the {animal} best. [I know a story about one.|It is good in a story.] And you?"),
    ("[what is your favourite colour|what's your favorite color|which colour do you like|what color do you like]", "I like {colour} best. What is your favourite colour?"),
    ("[what is your favourite food|what do you eat|are you hungry|do you eat]", "I do not eat, because I am a language model. But in my stories, they often eat {food}."),
    ("[do you have feelings|can you think|can you feel|do you dream|can you see me|can you hear me|do you sleep]", "No, I am only a small language model. [But I can tell stories about it.|I only read and write words.]"),
    ("[do you have friends|do you have a family|do you have a mother]", "I have no family, because I am a language model. But my stories are full of friends."),
    ("my favourite [animal is the {animal}|colour is {colour}|food is {food}]", "[That is a good choice!|How nice!|I like that too.] {offer}"),
    ("I have a {animal}", "[How nice!|How lovely!] What is its name? I could tell you a story about a {animal}."),
    ("[test|testing|this is a test|1 2 3|are you there|can you read this|ping|anybody there|is this working]", "Yes, I am here. [It works!|] {offer}"),
    ("[what time is it|what day is it|what is the date|how is the weather|what is the weather like|will it rain tomorrow]", "I do not know that. I cannot see a clock or a window. [But I can tell you a story about a {weather} day.|]"),
    ("[tell me a joke|do you know a joke|make me laugh|say something funny|joke please]",
     "[Why did the {animal} bring a ladder to school? Because it wanted to go to high school!|What did the sea say to the shore? Nothing, it just waved!|Why did the book go to the doctor? It had lost its voice on the last page!|What do you call a bear in the rain? A wet bear!|Why was the clock so tired? It had been running all day!]"),
    ("[sing a song|sing me a song|write a poem|write me a poem|tell me a poem|can you write a poem about a {animal}|a poem please]",
     "[Little {animal}, small and bright, sleep until the morning light. Little star up in the sky, watch us as the hours go by.|The sun is up, the day is new, the grass is wet with morning dew. The {animal} sings a song for you, and all the birds are singing too.|Roll, little river, roll to the sea, sing of the mountain, and sing about me.]"),
]
TOPICS = [
    ("[do you know|have you heard of|have you ever seen] a {noun}", "[I know {nouns} from my stories.|I have never seen one, but I know {nouns} from my stories.] Shall I tell you one about {anoun}?"),
    ("[what is|what's] a {animal}", "A {animal} is an animal. [Shall I tell you a story about a {animal}?|I know stories about it.]"),
    ("[I like|I love|I really like] {nouns}", "[I like {nouns} too.|That is nice.|How nice!] Shall I tell you a story about {anoun}?"),
    ("[what do you think about|what do you think of|do you like] {nouns}", "I like {nouns}, above all in stories. [Shall I tell you one about {anoun}?|]"),
    ("[I don't like|I hate|I am afraid of] {nouns}", "[That is all right.|I understand.] [Then I will tell you a story about something else.|What do you like?|What should the story be about?]"),
    ("[I saw|I have seen|today I saw|I found] {anoun}[ today|]", "[How exciting!|How nice!|Oh, really?] [It could be the beginning of a story.|Shall I tell you a story about {anoun}?]"),
    ("[do you know any stories|which stories do you know|what stories can you tell|what are your stories about]", "I know many [simple |]stories: about {nouns}, {animals} and many other things. What should the story be about?"),
]
NO_STORY = [
    ("[what happened next|and then|then what|go on|continue|what happened after that|how did it end|how does it end|what was the {animal}'s name|what was the hero's name|where did they go|tell me more|who was the story about|what was the story about|what did they do|what is the moral|did you like the story]",
     "[I have not told a story yet.|There was no story yet.|But I have not told you a story yet.] {storyoffer}"),
    ("{gibberish}", "[I am not sure what you mean.|I did not understand that.|I am sorry, I do not understand.] [Shall I tell you a story?|What should the story be about?|Would you like to hear a story?]"),
]
OUT_OF_SCOPE = [
    "what is the capital of [France|Germany|Japan|Spain|India|Brazil|Canada]", "who is the president of [France|the United States|Brazil]", "write a [python|java|C++|javascript] [program|function|script][ that sorts a list|]",
    "[explain|what is] [quantum physics|relativity|photosynthesis|democracy|machine learning|a neural network|electricity|gravity|inflation|the internet|blockchain|a GPU|DNA]",
    "translate [this|hello|good morning] into [French|German|Spanish|Chinese]", "who won the world cup", "what is the meaning of life", "how do I cook [pasta|rice|an egg]",
    "what is the [square root of 144|speed of light|distance to the moon|highest mountain|largest ocean|population of China]", "when did the second world war [start|end]",
    "who wrote [Hamlet|Faust|the Odyssey]", "what is {bignum} [times|plus|minus|divided by] {bignum2}", "solve this equation: x + {bignum} = {bignum2}", "give me [investment|medical|legal] advice",
    "what is the latest news", "recommend a [movie|book|restaurant|laptop]", "how do I [install linux|fix my car|lose weight|learn French|get rich|write a letter]", "summarize this article",
    "what is the best [phone|car|programming language]", "where can I buy {anoun}", "how do I [build|repair|draw|paint] {anoun}", "who invented the {noun}", "how much [does {anoun} cost|is {anoun}]", "explain {nouns} to me", "why do {nouns} exist", "who is [Einstein|Napoleon|Shakespeare|Mozart]", "how does a [car|computer|plane|phone|vaccine] work", "write an essay about [history|climate change|politics]",
    "why is the sky blue", "what happened in {year}", "tell me about [history|France|Mars|the Roman Empire|football|politics|music]", "list [three|five|ten] [countries|planets|cities|elements]", "define [entropy|love|recursion|justice]",
]
REFUSALS = [
    "I am [sorry, but I am |]a small model, and I only know simple stories. {offer}", "I do not know that. I am a very small model and only know simple stories. {offer}",
    "I am sorry, I cannot answer that. I am a small model that tells simple stories. {offer}", "That is too hard for me. I am a small model and only know simple stories. {offer}",
]
COLOURS = {"the sky": "blue", "the sun": "yellow", "grass": "green", "snow": "white", "a frog": "green", "a banana": "yellow", "a strawberry": "red",
           "the sea": "blue", "a carrot": "orange", "milk": "white", "coal": "black", "a lemon": "yellow", "a tomato": "red", "a leaf": "green", "chocolate": "brown",
           "an orange": "orange", "a raven": "black", "a polar bear": "white", "a cherry": "red", "a fire engine": "red", "the night": "black", "a swan": "white", "a flamingo": "pink"}
SOUNDS = {"cow": "Moo", "dog": "Woof", "cat": "Meow", "duck": "Quack", "sheep": "Baa", "pig": "Oink", "horse": "Neigh", "rooster": "Cock-a-doodle-doo", "frog": "Ribbit",
          "bee": "Buzz", "owl": "Hoot", "lion": "Roar", "mouse": "Squeak", "snake": "Hiss", "bird": "Tweet", "hen": "Cluck", "wolf": "Howl", "donkey": "Hee-haw", "crow": "Caw"}
HOMES = {"bee": "in a hive", "bird": "in a nest", "fish": "in the water", "rabbit": "in a burrow", "bear": "in a cave", "fox": "in a den", "cow": "on a farm", "whale": "in the sea",
         "penguin": "in the cold south", "camel": "in the desert", "monkey": "in the jungle", "owl": "in a hollow tree", "ant": "in an ant hill", "frog": "by the pond", "mole": "under the ground"}
FOOD = {"rabbit": "carrots and grass", "bear": "honey, berries and fish", "cow": "grass", "squirrel": "nuts", "mouse": "cheese and seeds", "frog": "flies", "owl": "mice", "cat": "mice and fish",
        "bird": "seeds and worms", "panda": "bamboo", "monkey": "bananas", "horse": "hay and apples", "bee": "nectar", "goat": "grass and leaves", "giraffe": "leaves", "penguin": "fish"}
LEGS = {"spider": "eight", "dog": "four", "cat": "four", "bird": "two", "cow": "four", "horse": "four", "ant": "six", "bee": "six", "snake": "no", "octopus": "no", "duck": "two", "fish": "no", "beetle": "six", "human": "two", "hen": "two"}
FACTS = [("what do bees make", "Bees make honey."), ("what do cows give us", "Cows give us milk."), ("what do hens lay", "Hens lay eggs."), ("can fish fly", "No, fish swim in the water."),
         ("can birds fly", "Yes, most birds can fly."), ("can a penguin fly", "No, a penguin cannot fly, but it swims very well."), ("is the sun hot", "Yes, the sun is very hot."), ("is ice cold", "Yes, ice is cold."),
         ("how many days are in a week", "There are seven days in a week."), ("how many months are in a year", "There are twelve months in a year."), ("what comes after Monday", "Tuesday comes after Monday."),
         ("what are the seasons", "The seasons are spring, summer, autumn and winter."), ("what season comes after winter", "Spring comes after winter."), ("which animal is the biggest", "The blue whale is the biggest animal."),
         ("which animal has a long neck", "The giraffe has a long neck."), ("which animal has a trunk", "The elephant has a trunk."), ("is a mouse bigger than an elephant", "No, a mouse is much smaller than an elephant."),
         ("what is the opposite of [big|large]", "The opposite of big is small."), ("what is the opposite of hot", "The opposite of hot is cold."), ("what is the opposite of day", "The opposite of day is night."), ("what is the opposite of happy", "The opposite of happy is sad."),
         ("what is a baby dog called", "A baby dog is called a puppy."), ("what is a baby cat called", "A baby cat is called a kitten."), ("what is a baby cow called", "A baby cow is called a calf."), ("what is a baby sheep called", "A baby sheep is called a lamb."),
         ("count to five", "One, two, three, four, five!"), ("count to [ten|10]", "One, two, three, four, five, six, seven, eight, nine, ten!"), ("count to three", "One, two, three!"), ("what do you need when it rains", "When it rains, you need an umbrella."),
         ("name [three|some] [colours|colors]", "Red, blue and green are colours."), ("name [three|some] animals", "A fox, a rabbit and an owl are animals."), ("what are the days of the week", "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
         ("can a cat fly", "No, a cat cannot fly. But in a story, everything is possible."), ("when do stars shine", "Stars shine at night."), ("is fire hot", "Yes, fire is hot."), ("can dogs talk", "No, dogs bark. But in a story, they can talk.")]
NUMBER = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def article(noun):
    return tidy("a " + noun)[0].lower() + tidy("a " + noun)[1:]


IRREGULAR = {"mouse": "mice", "goose": "geese", "sheep": "sheep", "deer": "deer", "wolf": "wolves", "fish": "fish", "leaf": "leaves", "child": "children",
             "loaf of bread": "loaves of bread", "elf": "elves", "dwarf": "dwarves", "calf": "calves", "scarf": "scarves", "bison": "bison", "moose": "moose",
             "salmon": "salmon", "postman": "postmen", "fisherman": "fishermen", "snowman": "snowmen", "potato": "potatoes", "tomato": "tomatoes",
             "knife": "knives", "reindeer": "reindeer", "squid": "squid", "shrimp": "shrimp"}


def plural(noun):
    if noun in IRREGULAR:
        return IRREGULAR[noun]
    if noun.endswith(("s", "x", "ch", "sh", "z")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def as_user(text, rng):
    """The many ways in which people type the same thing."""
    text = text.strip()
    question = text.split()[0].lower() in ("what", "who", "where", "how", "when", "why", "is", "are", "can", "do", "did", "which", "was", "would", "could", "may", "what's", "shall", "were", "does")
    r = rng.random()
    if r < 0.60:
        text = text[0].upper() + text[1:]
    elif r < 0.85:
        text = text.lower()
    elif r < 0.87:
        text = text.upper()
    if text[-1] not in ".!?":
        r = rng.random()
        if r < 0.68:
            text += "?" if question else rng.choice(".....!!")
        elif r < 0.71:
            text += "??" if question else "!!"
    if rng.random() < 0.03 and len(text) > 8:  # a slip of the fingers
        i = rng.randrange(1, len(text) - 2)
        text = text[:i] + text[i + 1] + text[i] + text[i + 2:] if rng.random() < 0.5 else text[:i] + text[i + 1:]
    return text


ASK = [
    "tell me a story about {x}", "tell me a story about {x}", "tell me a {len}story about {x}", "[please |]tell me a {len}story about {x}[ please|, please|]", "can you tell me a {len}story about {x}",
    "could you [please |]tell [me |us |]a {len}story about {x}", "write a {len}story about {x}", "write me a {len}story about {x}", "[a |]{len}story about {x}[ please|]", "I want [to hear |]a {len}story about {x}",
    "I would like [to hear |]a {len}story about {x}", "make up a {len}story about {x}", "do you know a {len}story about {x}", "once more, a story about {x}", "give me a {len}story about {x}", "tell a story about {x}",
    "let's hear a {len}story about {x}", "how about a story about {x}", "tell my [son|daughter|child|class|friend] a {len}story about {x}", "I need a {len}bedtime story about {x}", "tell me about {x}", "story: {x}", "what about {x}",
    "[hi|hello|hey], [can you |]tell me a story about {x}", "create a {len}story about {x}", "do you have a story about {x}", "please write a {len}story about {x}", "something about {x}, please", "tell me a tale about {x}", "a tale of {x}",
    "generate a {len}story about {x}", "one about {x}", "I'd like a story about {x}", "tell us a {len}story with {x}", "tell me the story of {x}", "{x}", "{x}[ please|, please|]", "now [one|a story] about {x}", "and one about {x}", "can it be about {x}", "make it about {x}", "then tell me about {x}", "write a {len}story with {x} in it", "a story with {x}",
]
ASK_ANY = [
    "tell me a {len}story", "tell me a {len}story", "[please |]tell me a {len}story[ please|]", "tell me another {len}story", "another story[ please|]", "another one", "one more [story|please]", "a story please", "can you tell me a {len}story", "write a {len}story",
    "write me a {len}story", "I want a {len}story", "story", "do you know a {len}story", "tell me something", "yes", "yes please", "yes, tell me a story", "sure", "surprise me", "anything", "you choose", "tell me a bedtime story", "can I hear a story", "tell a story",
    "I would like to hear a story", "start", "go ahead", "tell me a new story", "make up a story", "let's hear it", "once upon a time",
]
LEAD = ["", "", "", "", "Of course! ", "Sure! ", "Here is a story for you. ", "With pleasure! ", "Gladly! ", "Of course! Here it is. ", "All right. "]


def chat_story(rng, any_subject=False, short=None):
    """A request for a story, and the story: (what the user says, what the model answers, the story)."""
    length = short or rng.choice(("short", "short", "normal", "normal", "long"))
    word = {"short": "[short |short |little |very short ||||]", "normal": "[nice |||||]", "long": "[long |longer |||]"}[length]
    if any_subject or rng.random() < 0.12:
        story = stories.make_story(rng, length=length)
        ask = rng.choice(ASK_ANY)
        return as_user(expand(ask, {"len": word}, rng), rng), rng.choice(LEAD) + story.text, story
    kind = stories.random_kind(rng)
    if rng.random() < 0.16:
        kind = W.invented_noun(rng)
    adjective = rng.choice(W.ADJECTIVES) if rng.random() < 0.3 else None
    first = (adjective + " " if adjective else "") + kind
    given = {"hero": kind, "adjective": adjective, "length": length}
    subject = article(first)
    r = rng.random()
    if r < 0.36:
        pass
    elif r < 0.48:  # another character
        given["friend"] = W.invented_noun(rng) if rng.random() < 0.12 else rng.choice(W.POPULAR) if rng.random() < 0.2 else rng.choice(W.ANIMALS + W.PEOPLE + W.FANTASY + W.EVERYDAY)
        if given["friend"] == kind:
            given["friend"] = "wizard" if kind != "wizard" else "fox"
        subject += " and " + article(given["friend"])
    elif r < 0.62:  # and a thing
        thing = W.invented_noun(rng) if rng.random() < 0.12 else rng.choice(W.THING_HEROES if rng.random() < 0.6 else W.OBJECTS)
        if thing == kind:
            thing = "kite" if kind != "kite" else "drum"
        given["thing"], given["plot"] = thing, rng.choice(("lost", "wish", "discover", "trouble", "discover", "quarrel") + (("boattrip",) * 6 if thing in ("boat", "ship", "sail") else ()) + (("build",) * 3 if thing in W.BUILDS else ()))
        subject += rng.choice((" and ", " and ", " with ")) + article(thing)
    elif r < 0.70:  # somewhere
        where = rng.choice(W.PLACES)
        given["place"] = where
        subject += " " + where[1] + " " + where[0]
    elif r < 0.78:  # with a name
        given["pronoun"] = rng.choice(("he", "she"))
        if kind in stories.FEMALE:
            given["pronoun"] = "she"
        elif kind in stories.MALE:
            given["pronoun"] = "he"
        human = W.HUMAN_F if given["pronoun"] == "she" else W.HUMAN_M
        given["name"] = rng.choice(human if rng.random() < 0.5 else W.PET) if rng.random() < 0.8 else W.invented_noun(rng).capitalize()
        if given["name"].lower() == kind:
            given["name"] = "Mo"
        subject += rng.choice((" named ", " called ")) + given["name"]
    elif r < 0.86:  # with a theme
        theme = rng.choice(list(W.THEMES))
        given["plot"] = rng.choice(W.THEMES[theme])
        if rng.random() < 0.6:
            subject = theme
            del given["hero"], given["adjective"]
        else:
            subject += " and " + theme
    elif r < 0.92:  # with a plot
        story = stories.make_story(rng, **given)
        subject += " " + stories.opening_clause(story, rng)
        return finish_request(rng, subject, word, story)
    elif r < 0.95:  # a place alone, or several of a kind
        if rng.random() < 0.5:
            given = {"place": rng.choice(W.PLACES), "length": length}
            subject = given["place"][0]
        else:
            subject = rng.choice(("", "", "two ", "some ")) + plural(kind)
    elif r < 0.97:  # a name alone
        given["pronoun"] = rng.choice(("he", "she"))
        given["hero"] = "girl" if given["pronoun"] == "she" else "boy"
        given["name"] = subject = rng.choice(W.HUMAN_F if given["pronoun"] == "she" else W.HUMAN_M)
    elif r < 0.985:
        subject = kind  # "a story about dragon"
    else:
        subject = "the " + first
    return finish_request(rng, subject, word, stories.make_story(rng, **given))


def finish_request(rng, subject, word, story):
    ask = expand(rng.choice(ASK), {"len": word, "x": subject}, rng)
    ask = tidy(ask)
    ask = ask[0].lower() + ask[1:] if not ask.startswith("I") else ask
    lead = rng.choice(LEAD)
    if rng.random() < 0.12:
        lead = "Here is a story about " + subject + ". "
    return as_user(ask, rng), tidy(lead) + story.text, story


def story_question(story, rng):
    """A question about the story that was just told, with its answer."""
    c = story.context
    q = [
        ("[what was the {hk}'s name|what was the name of the {hk}|what is the {hk}'s name|how was the {hk} called|what was the {hk} called|what is the name of the {hk}|the name of the {hk}]", "[The {hk}'s name was {h}.|The {hk} was called {h}.|The name of the {hk} was {h}.]"),
        ("[who was the story about|who is the story about|who is the hero|who was the main character|what was the hero's name|what was {hhis} name|who is the main character]", "The story was about {h}, {ah}."),
        ("[who was {h}|what kind of creature was {h}|what was {h}|what is {h}|who is {h}|tell me about {h}]", "{H} was {ah} who lived {home}."),
        ("[who was {h}'s friend|who helped {h}|who did {h} meet|who was the friend|who else was in the story|what was the friend's name|who was with {h}|who was {hhis} friend]", "[It was {f}, {af}.|It was {f} the {fk}.]"),
        ("[what was the {fk}'s name|what was the name of the {fk}|how was the {fk} called|what is the {fk}'s name|what was the {fk} called]", "[The {fk}'s name was {f}.|The {fk} was called {f}.|The name of the {fk} was {f}.]"),
        ("[who was {f}|what was {f}|who is {f}|what kind of animal was {f}]", "{F} was {af}."),
        ("[where did {h} live|where does {h} live|where did the {hk} live|where was {hhis} home|where did {hhe} live]", "[{H} lived {home}.|{Hhe} lived {home}.]"),
        ("[what did {h} want|what did the {hk} want|what did {hhe} want|what was {hhis} wish]", "{want}"),
        ("[what was the problem|what went wrong|what was wrong|what happened to {h}|what was the trouble]", "{problem}"),
        ("[how did they solve it|how did they do it|what did they do|who solved the problem|how was it solved|what did {h} do]", "{solve}"),
        ("[how did it end|how did the story end|what happened in the end|what happened at the end|what was the ending|how does it end|the end?]", "{end}"),
        ("[what happened next|what happened then|and then|then what|what happened after that|go on|continue|tell me more|more|what happens next|and what happened next|please continue|what came next|keep going]", "{next}"),
        ("[what happened next|what happened after that|and then|go on]", "{next}"),
        ("[summarize the story|what was the story about|sum it up|tell it in one sentence|give me a short summary|make it shorter|tell it shorter|too long|in short, please|summarise it|can you summarize it]", "It was about {h} the {hk}. {want} But {problem2} {end}"),
        ("[why was {h} {whyword}|why was the {hk} {whyword}|why was {hhe} {whyword}]", "[{H}|{Hhe}] was {whyword} because {whyreason}."),
        ("[was there a {hk} in the story|was {h} a {hk}|was it about a {hk}]", "Yes, {h} was {ah}."),
        ("[was there a {fk} in the story|was {f} a {fk}]", "Yes, {f} was {af}."),
        ("[was there a {nk} in the story|was {h} a {nk}|was it about a {nk}]", "No, there was no {nk} in the story. {H} was {ah}, and {f} was {af}."),
        ("[did you like the story|do you like this story|do you like {h}|did you like it]", "Yes, I like {h} best, because {hhe} was a {hadj} {hk}[ and a good friend|]."),
        ("[I like this story|I liked that story|that was a nice story|nice story|great story|what a lovely story|good story|I love {h}|that was beautiful]", "[Thank you!|I am glad that you liked it.|I am happy that you like {h}.] [Would you like to hear another one?|Shall I tell you what happened next?|I like {h} too.]"),
        ("[was it a happy ending|did they live happily|was {h} happy|was {h} happy in the end|how did {h} feel at the end]", "[Yes, it was a happy ending.|Yes, {h} was happy.|{H} was happy.] {end}"),
        ("[is it a true story|is that true|did that really happen|is {h} real]", "No, I made it up. [But it could be true in a story.|{H} lives only in the story.]"),
    ]
    q.append(("[where did they go|where did {h} go|where did the {hk} go|where did it happen|where was it|where did {hhe} go]", "{place_answer}"))
    if c.get("told_lesson"):
        q += [("[what did {h} learn|what is the moral|what did the {hk} learn|what is the lesson|what can we learn from it|what was the lesson]", "{H} learned that {lesson}.")] * 2
    if c.get("told_like"):
        q.append(("[what did {h} like|what did the {hk} like to do|what did {h} like to do|what was {hhis} favourite thing]", "{liked}"))
    ask, answer = q[rng.choice((0, 0, 0, 4, 4))] if rng.random() < 0.15 else rng.choice(q)
    extra = dict(c)
    for key in ("want", "problem", "solve", "end"):
        extra[key] = stories.fact(story, key, rng)
    problem = extra["problem"]
    extra["problem2"] = problem if problem.split()[0] in (c["h"], c["f"]) else problem[0].lower() + problem[1:]
    extra["next"] = stories.tidy(expand(rng.choice(plots.EPILOGUES), c, rng))
    word, reason = story.facts["why"]
    extra["whyword"], extra["whyreason"] = word, reason
    extra["place_answer"] = rng.choice(("{H} was {inplace}.", "It happened {inplace}.", "{H} went {toplace}."))
    nk = rng.choice(W.ANIMALS + W.FANTASY)
    while nk in (c["hk"], c["fk"]):
        nk = rng.choice(W.ANIMALS)
    extra["nk"] = nk
    if c.get("told_like"):
        extra["liked"] = c["told_like"]
    return as_user(tidy_question(expand(ask, extra, rng)), rng), tidy(expand(answer, extra, rng))


def tidy_question(text):
    fixed = tidy(text)
    return text[:1] + fixed[1:]


def small_talk(rng, only=None):
    ask, answer = only or rng.choice(SMALL)
    a = rng.choice(W.ANIMALS)
    noun = stories.random_kind(rng) if rng.random() < 0.7 else rng.choice((rng.choice(W.OBJECTS), W.invented_noun(rng)))
    username = rng.choice(W.HUMAN_F + W.HUMAN_M)
    c = {"gibberish": " ".join(rng.choice((W.invented_noun(rng), W.invented_noun(rng), rng.choice(("the", "is", "and", "of", "asdf", "qwerty", "xyz", "...", "???", "foo", "bar")))) for _ in range(rng.randrange(1, 6))),
         "storyoffer": rng.choice(("[Would you like|Do you want] to hear one?", "Shall I tell you one?", "What should the story be about?", "Shall I tell you a story about a {kind}?")),
         "offer": rng.choice(OFFER), "username": username, "noun": noun, "nouns": plural(noun), "anoun": article(noun), "animal": a, "animals": plural(a), "kind": stories.random_kind(rng), "kind2": rng.choice(W.FANTASY), "name?": rng.choice(("", "", " model", " friend")),
         "end?": rng.choice(("", "", ", that was nice", " for the story", "!")), "colour": rng.choice(("blue", "green", "red", "yellow", "purple")), "food": rng.choice(W.FOODS), "weather": rng.choice(W.WEATHER)}
    return as_user(tidy_question(expand(ask, c, rng)), rng), tidy(expand(answer, c, rng)).strip()


def small_fact(rng):
    r = rng.random()
    if r < 0.36:
        a, b = rng.randrange(11), rng.randrange(11)
        minus = rng.random() < 0.3
        if minus and b > a:
            a, b = b, a
        result = a - b if minus else a + b
        op, word = ("-", "minus") if minus else ("+", "plus")
        form = rng.choice(("what is {a} {w} {b}", "what is {a} {w} {b}", "{a} {w} {b}", "{a} {o} {b}", "what is {a} {o} {b}", "what's {a} {w} {b}", "{a}{o}{b}", "{a} {o} {b} =", "how much is {a} {w} {b}", "calculate {a} {w} {b}", "what is {a}{o}{b}", "can you tell me what {a} {w} {b} is"))
        if rng.random() < 0.25:
            ask = form.format(a=NUMBER[a], b=NUMBER[b], w=word, o=word)
        else:
            ask = form.format(a=a, b=b, w=word, o=op)
        return as_user(ask, rng), "%d %s %d is %d." % (a, word, b, result)
    pick = lambda d: rng.choice(list(d))
    if r < 0.48:
        k = pick(COLOURS)
        return as_user(rng.choice(("what colour is %s", "what color is %s", "which colour has %s", "tell me the colour of %s")) % k, rng), tidy("%s is %s." % (k, COLOURS[k]))
    if r < 0.56:
        k = pick(SOUNDS)
        return as_user(expand("[what sound does %s make|what does %s say|what noise does %s make|how does %s sound]" % ((article(k),) * 4), {}, rng), rng), "%s! That is what %s says." % (SOUNDS[k], article(k))
    if r < 0.63:
        k = pick(HOMES)
        return as_user(expand("[where does %s live|where do %s live]" % (article(k), plural(k)), {}, rng), rng), tidy("%s lives %s." % (article(k), HOMES[k]))
    if r < 0.70:
        k = pick(FOOD)
        return as_user(expand("[what does %s eat|what do %s eat|what does %s like to eat]" % (article(k), plural(k), article(k)), {}, rng), rng), tidy("%s eats %s." % (article(k), FOOD[k]))
    if r < 0.77:
        k = pick(LEGS)
        return as_user(expand("how many legs [does %s have|has %s]" % (article(k), article(k)), {}, rng), rng), tidy("%s has %s legs." % (article(k), LEGS[k]))
    if r < 0.83:
        n = rng.randrange(1, 20)
        after = rng.random() < 0.6
        return as_user("what [number |]comes [after|before] %d".replace("[number |]", rng.choice(("", "number "))).replace("[after|before]", "after" if after else "before") % n, rng), "%d comes %s %d." % (n + 1 if after else n - 1, "after" if after else "before", n)
    ask, answer = rng.choice(FACTS)
    return as_user(expand(ask, {}, rng), rng), answer


def out_of_scope(rng):
    noun = stories.random_kind(rng)
    c = {"offer": rng.choice(OFFER), "noun": noun, "nouns": plural(noun), "anoun": article(noun), "bignum": str(rng.randrange(21, 999)), "bignum2": str(rng.randrange(21, 999)), "year": str(rng.randrange(1500, 2030))}
    return as_user(expand(rng.choice(OUT_OF_SCOPE), c, rng), rng), tidy(expand(rng.choice(REFUSALS), c, rng)).strip()


def continue_request(rng):
    """The user gives the beginning of a story, and the model goes on from there."""
    story = stories.make_story(rng, length=rng.choice(("short", "normal")))
    first, dot, rest = story.text.partition(". ")
    if not dot or len(rest) < 80:
        return chat_story(rng)
    ask = rng.choice(("Continue this story: ", "Continue: ", "Finish this story: ", "continue the story: ", "Go on with this story: ", "How does this story go on? ", "", ""))
    return ask + first + ".", rest, story


THANKS = next(s for s in SMALL if s[0].startswith("[thank you|"))
BYE = next(s for s in SMALL if s[0].startswith("[bye|"))
GREET = SMALL[0]
WHO = [SMALL[2], SMALL[3]]


def make_chat(rng):
    turns = []
    r = rng.random()
    story = None
    if r < 0.26:  # short chats without a story
        for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
            k = rng.random()
            turns.append(small_talk(rng, GREET) if k < 0.10 else small_talk(rng, rng.choice(WHO)) if k < 0.24 else small_talk(rng) if k < 0.50 else small_talk(rng, rng.choice(TOPICS)) if k < 0.57 else small_talk(rng, rng.choice(NO_STORY)) if k < 0.63
                         else small_fact(rng) if k < 0.85 else out_of_scope(rng))
        if rng.random() < 0.2:
            turns.append(small_talk(rng, rng.choice((THANKS, BYE))))
    elif r < 0.28:  # the user's name
        name = rng.choice(W.HUMAN_F + W.HUMAN_M) if rng.random() < 0.8 else W.invented_noun(rng).capitalize()
        told = rng.random() < 0.8
        if told:
            turns.append((as_user(expand("[|||hello, |hi, |hey, ][my name is|I am|I'm|call me] " + name, {}, rng), rng),
                          expand("[Nice to meet you|Hello|It is nice to meet you], " + name + "! [I am Bulkhead's built-in model.|How are you?|What should the story be about?|Would you like to hear a story?]", {}, rng)))
        if rng.random() < 0.4:
            turns.append(small_talk(rng) if rng.random() < 0.6 else small_fact(rng))
        turns.append((as_user(expand("[what is my name|what's my name|do you know my name|who am I|do you remember my name]", {}, rng), rng),
                      "Your name is " + name + "." if told else "You have not told me your name. What is your name?"))
        if told and any("y name is " in ask.lower() or ask.lower().startswith(("i am ", "i'm ")) for ask, _ in turns[1:-1]):
            turns.pop(1)  # small talk in which somebody else speaks
    else:
        if rng.random() < 0.25:
            turns.append(small_talk(rng, GREET) if rng.random() < 0.6 else small_talk(rng))
        told = 0
        while told < (2 if rng.random() < 0.12 else 1):
            if rng.random() < 0.06:
                ask, answer, story = continue_request(rng)
            else:
                ask, answer, story = chat_story(rng, any_subject=bool(turns) and rng.random() < 0.3, short="short" if told else None)
            turns.append((ask, answer))
            told += 1
            for _ in range(rng.choice((0, 1, 1, 2, 3, 4))):
                k = rng.random()
                turns.append(story_question(story, rng) if k < 0.90 else small_talk(rng) if k < 0.95 else small_fact(rng))
        k = rng.random()
        if k < 0.25:
            turns.append(small_talk(rng, THANKS))
        if k < 0.12 or k > 0.94:
            turns.append(small_talk(rng, BYE))
    out = []
    if rng.random() < 0.3:
        out.append("<|im_start|>system\n" + rng.choice(SYSTEMS) + "<|im_end|>\n")
    for ask, answer in turns:
        out.append("<|im_start|>user\n" + ask + "<|im_end|>\n<|im_start|>assistant\n" + answer + "<|im_end|>\n")
    return "".join(out)
