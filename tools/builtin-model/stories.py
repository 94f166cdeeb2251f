"""Writes short stories. A story is a plot filled with a world: a hero, a friend, a place, a thing, and what they want.

Every fact is drawn once, before the first sentence, and each sentence reads it from the same context, so that names,
pronouns and things stay the same from beginning to end. `Story.facts` keeps what a reader could be asked about.
"""

import re

from grammar import expand, pick, tidy
from plots import ENDINGS, LEARNED, LIKE_LINES, LISTS, OPENINGS, PLOTS, TRAIT_LINES
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


def choose_friend(rng, hero):
    while True:
        r = rng.random()
        friend = W.favourite(rng, W.ANIMALS if r < 0.7 else W.PEOPLE if r < 0.85 else W.FANTASY, hero)
        if friend != hero and friend not in hero and hero not in friend:
            return friend


def put_object_and_place(c, rng, hero, friend, thing, place, plot):
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


def put_details(c, rng, hero, thing, plot, snack):
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
        c["obj"] = rng.choice(W.THINGS_FOR.get(plot, W.OBJECTS))
        c["aobj"] = "a " + rng.choice(W.OBJECT_ADJ) + " " + c["obj"]
    c["broken"] = favourite(W.BROKEN, "broken")
    c["sound"], c["soundwhat"] = favourite(W.SOUNDS, "sound")
    c["mistake"], c["mistakewhat"] = favourite(W.MISTAKES, "mistake")


def tell_intro(c, rng, say, length):
    intro = [say(pick(rng, OPENINGS))]
    c["told_like"] = ""
    if length != "short" or rng.random() < 0.3:
        if rng.random() < 0.6 or length == "long":
            intro.append(say(pick(rng, TRAIT_LINES)))
        if rng.random() < 0.6 or length == "long":
            intro.append(say(pick(rng, LIKE_LINES)))
            c["told_like"] = intro[-1]
    return intro


def tell_plot(rng, say, paras, length):
    chance = {"short": 0.1, "normal": 0.5, "long": 0.95}[length]  # of lines that may be left out
    paragraphs = []
    used = set()
    for lines in paras:
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
    return paragraphs


def tell_end(c, rng, say):
    end = []
    if rng.random() < 0.6:
        end.append(say(pick(rng, LEARNED)))
        c["told_lesson"] = "yes"
    if not end or rng.random() < 0.75:
        end.append(say(pick(rng, ENDINGS)))
    if rng.random() < 0.25:
        end.append("The end.")
    return end


def make_story(rng, hero=None, friend=None, thing=None, place=None, plot=None, adjective=None, name=None,
               pronoun=None, friend_name=None, length=None, snack=None):
    """Draws a world, then tells it. What is given is kept: the kind of hero or friend, the thing, the place, the plot.

    The order of the draws is part of the training text, which is the same for the same seed.
    """
    story = Story()
    c = story.context
    plots = list(PLOTS)
    hero = hero or random_kind(rng)
    story.plot = plot = plot or W.favourite(rng, plots, hero, 0.35)
    p = PLOTS[plot]
    put_character(c, "h", hero, rng, adjective, name, pronoun)
    if friend is None:
        friend = choose_friend(rng, hero)
    put_character(c, "f", friend, rng, name=friend_name, avoid_name=c["h"], avoid_pronoun=c["hhe"])
    put_object_and_place(c, rng, hero, friend, thing, place, plot)
    put_details(c, rng, hero, thing, plot, snack)
    c["lesson"] = pick(rng, W.LESSONS[pick(rng, p["lesson"])])
    length = length or rng.choice(("short", "normal", "normal", "long"))
    nicknames = hero not in friend and friend not in hero

    def say(template):
        if nicknames and rng.random() < 0.25:  # now and then the kind instead of the name
            which = rng.choice("hf")
            template = _speaker.sub(lambda m: m.group(0).replace("{%s}" % which, "the {%sk}" % which), template, count=1)
        return expand(template, c, rng)

    paragraphs = [tell_intro(c, rng, say, length)] + tell_plot(rng, say, p["paras"], length)
    end = tell_end(c, rng, say)
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
