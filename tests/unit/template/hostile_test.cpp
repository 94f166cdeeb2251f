// Templates that would take all time, memory or stack: each ends within a second and 64 MiB, with an error that names
// the limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/template/limits.hpp"
#include "tests/unit/template/render.hpp"

namespace bulkhead::jinja {
namespace {

using ::testing::HasSubstr;

std::string repeated(std::string_view text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i)
    all += text;
  return all;
}

void expect_limit(const std::string& source, std::string_view words) {
  const testing::WithinLimits watched;
  const auto made = testing::pieces(source);
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

TEST(HostileTemplate, NumbersThatGrow) {
  expect_limit("{{ 9**99999 }}", "digits");
  expect_limit(
      "{% set ns = namespace(n=3) %}{% for i in range(9999) %}{% set ns.n = ns.n * ns.n %}"
      "{% endfor %}",
      "digits");
  expect_limit("{{ range(10**12)|length }}", "range");
}

TEST(HostileTemplate, DepthOfParsing) {
  expect_error("{{ " + repeated("(", 100000));
  expect_error("{{ " + repeated("[", 100000));
  expect_error("{{ " + repeated("-", 100000) + "1 }}");
  expect_error("{{ " + repeated("not ", 100000) + "1 }}");
  expect_error("{{ 1" + repeated("+1", 100000) + " }}");
  expect_error("{{ x" + repeated(".a", 100000) + " }}");
  expect_error("{{ x" + repeated("|e", 100000) + " }}");
  expect_error(repeated("{% if 1 %}", 100000));
  expect_error("{% for " + repeated("(", 100000));
  EXPECT_EQ(testing::rendered(repeated("{% if 0 %}{% elif 1 %}a{% endif %}", 3000)),
            repeated("a", 3000));
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
