// Templates that would take all time, memory or stack: each ends within a second and 64 MiB, with an error that names
// the limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/sample.hpp"
#include "tests/unit/template/limits.hpp"
#include "tests/unit/template/render.hpp"
#include "worker/model/template/chat.hpp"

namespace bulkhead::jinja {
namespace {

using ::testing::HasSubstr;

std::string repeated(std::string_view text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i)
    all += text;
  return all;
}

// For templates that reach the limit of steps. A sanitizer build has a lower one, because the further steps run the
// same code again.
Limits limit_of_steps() {
  Limits limits;
  if (bulkhead::test::kSample) limits.steps /= 8;
  return limits;
}

void expect_limit(const std::string& source, std::string_view words) {
  const testing::WithinLimits watched;
  const Limits limits = words.starts_with("too m") ? limit_of_steps() : Limits{};
  const auto made = testing::pieces(source, "{}", true, limits);
  ASSERT_FALSE(made.ok()) << source.substr(0, 100);
  EXPECT_THAT(made.error().message(), HasSubstr(std::string(words))) << source.substr(0, 100);
  EXPECT_THAT(made.error().message(), HasSubstr("line "));
}

void expect_error(const std::string& source) {
  const testing::WithinLimits watched;
  EXPECT_THAT(testing::rendered(source), HasSubstr("ERROR")) << source.substr(0, 100);
}

TEST(HostileTemplate, LoopWithoutEnd) {
  expect_limit("{% set l = [1] %}{% for x in l %}{% do l.append(x) %}{% endfor %}", "too m");
  expect_limit(
      "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x"
      "{% endfor %}{% endfor %}{% endfor %}",
      "too m");
}

TEST(HostileTemplate, TextThatDoubles) {
  expect_limit(
      "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}{{ ns.s }}",
      "memory");
  expect_limit("{{ 'ab' * 10**15 }}", "often");
  expect_limit("{{ 'ab' * 10**9 }}", "memory");
  expect_limit("{{ [1] * 10**9 }}", "memory");
  expect_limit("{% set s = 'aaaaaaaaaa' * 100000 %}{{ s.replace('a', s) }}", "too m");
  expect_limit("{{ 'a'.ljust(10**12) }}", "memory");
  expect_limit("{{ ('x' * 1000)|indent(10**12) }}", "memory");
  expect_limit("{{ ('a ' * 10**6)|wordwrap(10) }}", "memory");
  expect_error("{{ '%999999999d' % 1 }}");
  expect_error("{{ '{:999999999}'.format(1) }}");
}

// Each level of the dict has a copy of its entries while the levels below are written.
TEST(HostileTemplate, SortedKeysOfADictInItself) {
  expect_limit(
      "{% set d = {} %}{% do d.update({(0,): d}) %}{% for i in range(40000) %}"
      "{% do d.update({(i + 1,): 0}) %}{% endfor %}{{ d|pprint }}",
      "");
}

TEST(HostileTemplate, FormatsOfIntegersWithThousandsOfDigits) {
  for (const char* const format : {"'%d' % n", "'%x' % n", "'{:b}'.format(n)", "'%o' % n"}) {
    expect_limit(std::string("{% set n = 9**4000 %}{% for i in range(99999) %}{% set s = ") +
                     format + " %}{% endfor %}",
                 "too m");
  }
}

// Comparing such lists item by item would take 2^60 steps.
TEST(HostileTemplate, ListsThatShareTheirItems) {
  const std::string twins =
      "{% set ns = namespace(s=[1], t=[1], u=(1,)) %}{% for i in range(60) %}"
      "{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% set ns.u = (ns.u, ns.u) %}"
      "{% endfor %}";
  for (const char* const expression :
       {"ns.s == ns.t", "ns.s in [ns.t]", "[ns.s, ns.t]|sort|length", "[ns.s].index(ns.t)",
        "{'a': ns.s} == {'a': ns.t}", "{ns.u: 1}|length"})
    expect_limit(twins + "{{ " + expression + " }}", "too many steps");
  EXPECT_EQ(testing::rendered(twins + "{{ ns.s == ns.s }}"), "True");
}

// What is sought is found nearly everywhere, but for its last byte.
TEST(HostileTemplate, SearchesThatNearlyFind) {
  const std::string texts = "{% set s = 'a' * 5000000 %}{% set b = 'a' * 2500000 ~ 'b' %}";
  for (const char* const expression :
       {"b in s", "s.find(b)", "s.rfind(b)", "s.count(b)", "s.replace(b, '')", "s|replace(b, '')",
        "s.split(b)", "s.rsplit(b)", "s.partition(b)", "s.rpartition(b)"})
    expect_limit(texts + "{{ " + expression + " }}", "too many steps");
  expect_limit(
      "{% set s = 'a' * 500000 %}{% set b = 'a' * 250000 ~ 'b' %}{% for i in range(1000) %}"
      "{% set x = s.find(b) %}{% endfor %}",
      "too many steps");
  expect_limit("{% set s = 'ab' * 2000000 %}{{ s.strip('c' * 2000000 ~ 'ab') }}", "too many steps");
}

TEST(HostileTemplate, TagsWithoutEnds) {
  const testing::WithinLimits watched;
  EXPECT_EQ(testing::rendered("{{ ('<' * 3000000)|striptags|length }}"), "3000000");
  EXPECT_EQ(testing::rendered("{{ ('<!--' * 1000000)|striptags|length }}"), "4000000");
  EXPECT_EQ(testing::rendered("{{ ('<b>' ~ '<' * 1000000)|striptags|length }}"), "1000000");
}

TEST(HostileTemplate, LongTextsAgainAndAgain) {
  std::size_t asked = 0;
  const auto repeatedly = [&asked](const std::string& sets, const std::string& expression) {
    if (asked++ % bulkhead::test::kStride != 0) return;
    expect_limit(sets + "{% for i in range(99999) %}{% set x = " + expression + " %}{% endfor %}",
                 "too many steps");
  };
  const std::string twins = "{% set s = 'a' * 5000000 %}{% set t = 'a' * 5000000 %}";
  repeatedly(twins, "s == t");
  repeatedly(twins, "s < t");
  repeatedly(twins, "s.startswith(t)");
  repeatedly(twins + "{% set d = {s: 1} %}", "d[s]");
  const std::string wide = "{% set s = 'é' * 1000000 %}";
  repeatedly(wide, "s|length");
  repeatedly(wide, "s[999999]");
  repeatedly(wide, "s[-1:]");
  repeatedly(wide, "s.ljust(5)");
  const std::string mixed = "{% set s = 'aB<é ' * 500000 %}";
  for (const char* method :
       {"isupper", "isalpha", "istitle", "isprintable", "title", "swapcase", "upper"})
    repeatedly(mixed, std::string("s.") + method + "()");
  for (const char* filter : {"title", "capitalize", "wordcount", "upper", "urlencode", "e"})
    repeatedly(mixed, std::string("s|") + filter);
  repeatedly(mixed, "[s, s]|sort");
  repeatedly(twins, "s|safe");
  repeatedly("{% set s = 'a' * 1000000 %}", "s|striptags");
  repeatedly(twins, "s|attr(t)");
  repeatedly("{% set s = 'a' * 1000000 %}", "s|pprint");
  repeatedly(wide, "s|tojson(ensure_ascii=true)");
  expect_limit("{% set p = 'a.' * 1000000 %}{{ [{}]|map(attribute=p)|list }}", "memory");
  repeatedly("{% set s = '9' * 3000000 %}", "s|float");
  repeatedly("{% set s = '9' * 3000000 %}", "s|int");
  expect_limit("{% set s = 'a' * 1000000 %}{{ ([s] * 9000)|unique|list|length }}",
               "too many steps");
}

// Each piece of the user's text has a mark of its own.
TEST(HostileTemplate, TextsOfManyMarks) {
  std::size_t asked = 0;
  const auto expect_steps = [&asked](const std::string& source) {
    if (asked++ % bulkhead::test::kStride != 0) return;
    const testing::WithinLimits watched;
    const auto made = testing::pieces(source, R"({"user": "u"})", true, limit_of_steps());
    ASSERT_FALSE(made.ok()) << source;
    EXPECT_THAT(made.error().message(), HasSubstr("too many steps")) << source;
  };
  expect_steps(
      "{% set ns = namespace(s='') %}{% for i in range(30000) %}{% set ns.s = ns.s ~ 'a' ~ user %}"
      "{% endfor %}");
  const std::string many = "{% set s = (user ~ 'a') * 500000 %}{% for i in range(9999) %}";
  for (const char* const expression :
       {"s ~ s", "s|upper", "s|e", "s|tojson", "s|title", "s|string|trim('u')"})
    expect_steps(many + "{% set x = " + expression + " %}{% endfor %}");
}

TEST(HostileTemplate, ListsBesideTheListsOfTheTemplate) {
  expect_limit("{{ []|sort(attribute=',' * 400000) }}", "memory");
  expect_limit("{{ ('a ' * 5000000).split()|length }}", "memory");
  expect_limit("{{ ([1] * 900000)|sort|length }}", "memory");
  expect_limit("{{ ([{'a': 1}] * 500000)|groupby('a')|length }}", "memory");
}

// A long conversation gives a template no more than a short one has. A sanitizer build takes one template.
TEST(HostileTemplate, BesideALongConversation) {
  std::string json = R"({"messages": [{"role": "user", "content": "a text"})";
  for (int i = 1; i < 2000; ++i)
    json += R"(, {"role": "user", "content": "a text"})";
  json += "]}";
  std::size_t asked = 0;
  for (const char* const source :
       {"{% for m in messages %}{% for x in range(99999) %}{% if 1.5|round(3) %}{% endif %}"
        "{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for x in range(99999) %}{% if x|string|tojson %}{% endif %}"
        "{% endfor %}{% endfor %}",
        "{% set all = [] %}{% for m in messages %}{% for n in messages %}"
        "{% do all.append([m, n]) %}{% endfor %}{% endfor %}",
        "{% set s = 'a' * 2000000 %}{% set t = 'a' * 2000000 %}{% for m in messages %}"
        "{% for n in messages %}{% if s == t %}{% endif %}{% endfor %}{% endfor %}"}) {
    if (asked++ % bulkhead::test::kStride != 0) continue;
    const Result<Chat> chat = Chat::load(source, "", "");
    ASSERT_TRUE(chat.ok());
    const testing::WithinLimits watched;
    const auto made = chat.value().render({json, testing::at_noon().now, false});
    ASSERT_FALSE(made.ok()) << source;
    EXPECT_THAT(made.error().message(), HasSubstr("too m")) << source;
  }
}

// The items of a loop are freed with it, where nothing else can hold them.
TEST(HostileTemplate, LoopsOverListsOfTheirOwn) {
  const testing::WithinLimits watched;
  const std::string each =
      "{% for i in range(" + std::to_string(bulkhead::test::rounds(1000)) + ") %}";
  EXPECT_EQ(testing::rendered(each + "{% for j in range(2000) %}{% endfor %}{% endfor %}"), "");
  EXPECT_EQ(testing::rendered("{% set l = range(2000)|list %}" + each +
                              "{% for j in l[1:] %}{% endfor %}{% endfor %}"),
            "");
  EXPECT_EQ(testing::rendered("{% set d = dict(l=[1, 2]) %}{% set range = d.get %}"
                              "{% for i in range('l') %}{{ i }}{% endfor %}{{ d }}"),
            "12{'l': [1, 2]}");
  EXPECT_EQ(testing::rendered("{% set ns = namespace() %}{% for i in [1, 2][0:] %}"
                              "{% if loop.first %}{% set ns.l = loop %}{% endif %}{{ i }}"
                              "{% endfor %}{{ ns.l.length }}{{ ns.l.index }}"),
            "1222");
}

TEST(HostileTemplate, NumbersThatGrow) {
  expect_limit("{{ 9**99999 }}", "digits");
  expect_limit(
      "{% set ns = namespace(n=3) %}{% for i in range(9999) %}{% set ns.n = ns.n * ns.n %}"
      "{% endfor %}",
      "digits");
  expect_limit("{{ range(10**12)|length }}", "range");
}

TEST(HostileTemplate, DepthOfParsing) {
  expect_error("{{ " + repeated("(", 20000));
  expect_error("{{ " + repeated("[", 20000));
  expect_error("{{ " + repeated("-", 20000) + "1 }}");
  expect_error("{{ " + repeated("not ", 20000) + "1 }}");
  expect_error("{{ 1" + repeated("+1", 20000) + " }}");
  expect_error("{{ x" + repeated(".a", 20000) + " }}");
  expect_error("{{ x" + repeated("|e", 20000) + " }}");
  expect_error(repeated("{% if 1 %}", 20000));
  expect_error("{% for " + repeated("(", 20000));
  EXPECT_EQ(testing::rendered(repeated("{% if 0 %}{% elif 1 %}a{% endif %}", 3000)),
            repeated("a", 3000));
}

// A sanitizer build takes an eighth of each source that is not refused by its length.
TEST(HostileTemplate, LongSources) {
  expect_error(repeated("{{1}}", 400000));
  const auto fits = [](int kib, std::string_view part) {
    return (static_cast<std::size_t>(bulkhead::test::rounds(kib)) << 10) / part.size();
  };
  for (const char* part :
       {"{{1}}", "{% set a=1 %}", "{", "{#", "{{ a", "{% raw %}{{ }}{% endraw %}"}) {
    const testing::WithinLimits watched;
    (void)testing::rendered(repeated(part, fits(256, part)));
  }
  for (const char* part : {"1,", "'',", "a,", "[],", "1:1,", "a=1,"}) {
    const testing::WithinLimits watched;
    const std::string parts = repeated(part, fits(250, part));
    (void)testing::rendered("{{ [" + parts + "] }}");
    (void)testing::rendered("{{ {" + parts + "} }}");
    (void)testing::rendered("{{ dict(" + parts + ") }}");
  }
}

TEST(HostileTemplate, DepthOfRunning) {
  expect_limit("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deep");
  expect_limit(
      "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}"
      "{% endfor %}{{ ns.l }}",
      "deep");
  expect_limit("{% set l = [] %}{% do l.append(l) %}{{ l }}", "deep");
  expect_limit("{% set l = [] %}{% do l.append(l) %}{{ l|tojson }}", "deep");
  expect_limit(
      "{% set l = [] %}{% do l.append(l) %}{% set m = [] %}{% do m.append(m) %}{{ l == m }}",
      "deep");
  expect_limit("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "deep");
}

TEST(HostileTemplate, OrdinaryLongConversationFits) {
  const std::string source =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% "
      "endfor %}";
  std::string json = "{\"messages\": [";
  for (int i = 0; i < 2000; ++i)
    json += std::string(i == 0 ? "" : ", ") + R"({"role": "user", "content": ")" +
            repeated("word ", 200) + "\"}";
  const std::string text = testing::rendered(source, json + "]}");
  EXPECT_EQ(text.size(), 2000 * (std::string("<|im_start|>user\n<|im_end|>\n").size() + 999));
}

}  // namespace
}  // namespace bulkhead::jinja
