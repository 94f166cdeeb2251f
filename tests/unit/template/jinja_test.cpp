// What templates compute must be what Python's jinja2 computes. jinja_cases.json was made with jinja2 3.1, set up as
// in transformers: [template, text], or only [template] if Python raises an error.
#include <fstream>
#include <new>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/unit/template/render.hpp"

namespace bulkhead::jinja {
namespace {

TEST(Jinja, ComputesAsPythonDoes) {
  std::ifstream file(BULKHEAD_SOURCE_DIR "/tests/unit/template/jinja_cases.json");
  const auto all = nlohmann::ordered_json::parse(file);
  // The library would turn 2**70 into a float.
  std::string variables = all["variables"].dump();
  const std::string rounded = all["variables"]["big"].dump();
  variables.replace(variables.find(rounded), rounded.size(), "1180591620717411303424");
  for (const auto& one : all["cases"]) {
    const auto source = one[0].get<std::string>();
    const std::string text = testing::rendered(source, variables, false);
    if (one.size() == 2) {
      EXPECT_EQ(text, one[1].get<std::string>()) << source;
    } else {
      EXPECT_TRUE(text.starts_with("ERROR: ")) << source << " gives " << text;
    }
  }
}

// A template that goes through a schema recursively goes deep where the schema does.
TEST(Jinja, SaysWhatToDoWhereItGoesTooDeep) {
  std::string nested = "1";
  for (int i = 0; i < 149; ++i)
    nested = "{\"a\": " + nested + "}";
  const std::string text = testing::rendered(
      "{% macro m(v) %}{% if v is mapping %}{% for k, w in v.items() %}{% if k %}"
      "{{ '-' ~ m(w) }}{% endif %}{% endfor %}{% endif %}{% endmacro %}{{ m(v) }}",
      "{\"v\": " + nested + "}");
  EXPECT_NE(text.find("nest the request's values less"), std::string::npos) << text;
  EXPECT_NE(text.find("or mend the template"), std::string::npos) << text;
}

// As in transformers, which makes it a {% call %} block.
TEST(Jinja, GenerationHasNamesOfItsOwn) {
  EXPECT_EQ(testing::rendered("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}"
                              "{% endgeneration %}{{ x }}"),
            "21");
}

TEST(Jinja, SaysWhatHasNoItems) {
  EXPECT_NE(testing::rendered("{% for a in none %}{% endfor %}")
                .find("line 1: loops over null, which has no items"),
            std::string::npos);
  EXPECT_NE(testing::rendered("{{ n[1:] }}", R"({"n": 1})").find("takes a slice of an int; only"),
            std::string::npos);
}

TEST(Jinja, NamesTypesWithTheirArticles) {
  const auto error = [](const char* source) {
    return testing::rendered(source, R"({"n": 1, "z": null, "s": "s"})");
  };
  EXPECT_EQ(error("{{ n|dictsort }}"),
            "ERROR: the chat template, line 1: 'dictsort' needs a dict, and gets an int");
  EXPECT_EQ(error("{{ n() }}"),
            "ERROR: the chat template, line 1: calls an int, which is no function");
  EXPECT_EQ(error("{{ n + s }}"),
            "ERROR: the chat template, line 1: can't do '+' with an int and a string");
  EXPECT_EQ(error("{{ z|length }}"),
            "ERROR: the chat template, line 1: asks for the length of null, which has none");
  EXPECT_EQ(error("{{ s|abs }}"),
            "ERROR: the chat template, line 1: 'abs' needs a number, and gets a string");
}

TEST(Jinja, ChangesListsOnlyWhereAllowed) {
  constexpr char kSource[] =
      "{% set l = [] %}{% set x = l.append(2) %}{{ l }}{{ '[1]' | from_json }}";
  EXPECT_EQ(testing::rendered(kSource), "[2][1]");
  Environment strict = testing::at_noon();
  strict.extensions = false;
  const auto made = Template::parse(kSource).value().render(strict, 0, [](Interpreter&) {});
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message().find("'l.append'"), std::string::npos) << made.error().message();
}

// The request is not at fault, so it must not be refused as if its template were wrong.
TEST(Jinja, LetsAWantOfMemoryEndTheProcess) {
  const Template parsed = Template::parse("{{ x }}").value();
  EXPECT_THROW(
      (void)parsed.render(testing::at_noon(), 0, [](Interpreter&) { throw std::bad_alloc(); }),
      std::bad_alloc);
}

}  // namespace
}  // namespace bulkhead::jinja
