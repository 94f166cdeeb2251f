// Schemas that are refused, or of which a part is left out with a warning: what can't be enforced, what is too large,
// and what admits no value. Hostile schemas end in an error soon.
#include <ctime>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/constrain/schema_checks.hpp"
#include "worker/constrain/constraint.hpp"

namespace bulkhead::constrain {
namespace {

using ::testing::HasSubstr;

TEST(Schema, RefusesByNameWhatCanNotBeEnforced) {
  EXPECT_THAT(refusal(R"({"type":"array","uniqueItems":true})"), HasSubstr("\"uniqueItems\""));
  EXPECT_THAT(refusal(R"({"type":"number","multipleOf":0.01})"), HasSubstr("\"multipleOf\""));
  EXPECT_THAT(refusal(R"({"type":"string","format":"color"})"), HasSubstr("\"format\""));
  EXPECT_THAT(refusal(R"g({"type":"string","pattern":"(a)\\1"})g"), HasSubstr("\"pattern\""));
  EXPECT_THAT(refusal(R"({"$ref":"http://example.com/x"})"), HasSubstr("\"$ref\""));
  EXPECT_THAT(refusal(R"({"type":"strin"})"), HasSubstr("\"type\""));
  EXPECT_THAT(refusal(R"({"not":{"type":"array","items":{"type":"null"}}})"), HasSubstr("\"not\""));
  EXPECT_THAT(refusal(R"({"type":"string","minLength":"3"})"), HasSubstr("\"minLength\""));
  EXPECT_THAT(refusal(R"({"const":[1],"prefixItems":{}})"), HasSubstr("\"prefixItems\""));
  EXPECT_THAT(refusal(R"({"const":[1],"contains":{},"minContains":"1"})"),
              HasSubstr("\"minContains\""));
}

// Whether the branches of a oneOf overlap is decided before they are enforced.
TEST(Schema, WhatCanNotBeEnforcedBesideAnEnumIsNamedInABranch) {
  const std::string branches[][2] = {{R"({"enum":[0.25,1],"multipleOf":0.1})", "multipleOf"},
                                     {R"g({"enum":["aa","b"],"pattern":"(a)\\1"})g", "pattern"},
                                     {R"({"enum":["red","b"],"format":"color"})", "format"}};
  for (const auto& [branch, keyword] : branches) {
    const std::string schema =
        R"({"properties":{"x":{"oneOf":[)" + branch + R"(,{"type":"null"}]}}})";
    const std::string named = "\"" + keyword + "\" at #/properties/x/oneOf/0: ";
    EXPECT_THAT(refusal(schema), HasSubstr(named));
    const auto compiled = compile_schema(schema, Strictness::kLenient);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message();
    EXPECT_THAT(compiled->warnings, testing::ElementsAre(HasSubstr(named)));
  }
}

// The compiler makes further schemas for `not`, `oneOf`, conditions and dependencies. An error names the schema of the
// document for which it made them.
TEST(Schema, WhatASchemaIsMadeOfIsNamedWithItsPlace) {
  const std::string_view rows[][2] = {
      {R"g({"properties":{"a":{"not":{"pattern":"(a)\\1"}}}})g",
       "\"pattern\" at #/properties/a/not: "},
      {R"({"properties":{"a":{"not":{"type":"string","format":"color"}}}})",
       "\"format\" at #/properties/a/not: "},
      {R"({"anyOf":[{"not":{"properties":{"b":{"multipleOf":0.5}}}}]})",
       "\"multipleOf\" at #/anyOf/0/not/properties/b: "},
      {R"({"not":{"enum":[[1]]}})", "\"not\" at #/not: an array"},
      {R"({"properties":{"a":{"if":{"multipleOf":0.5},"then":{"type":"number"}}}})",
       "\"multipleOf\" at #/properties/a/if: "},
      {R"({"$defs":{"n":{"oneOf":[{"type":"number"},{"multipleOf":0.5}]}},"$ref":"#/$defs/n"})",
       "\"multipleOf\" at #/$defs/n/oneOf/1: "},
      {R"({"properties":{"a":{"type":"object"},"b":{"dependentSchemas":{"c":{"format":"color"}},"type":"string"}}})",
       "\"format\" at #/properties/b/dependentSchemas/c: "},
      {R"({"allOf":[{"type":"object"},{"patternProperties":{"(a)\\1":{}}}]})",
       "\"patternProperties\" at #/allOf/1: "},
      {R"({"anyOf":[{"type":"null"},{"allOf":[true,5]}]})", "see #/anyOf/1/allOf/1"},
  };
  for (const auto& [schema, named] : rows)
    EXPECT_THAT(refusal(std::string(schema)), HasSubstr(std::string(named))) << schema;
}

// Each schema would hold a copy of the name or the URI that it stands under: terabytes of both.
TEST(Schema, LongNamesAndUrisAroundManySchemasTakeLittleMemory) {
  std::string many, anchors;
  for (int i = 0; i < 100'000; ++i) {
    many += i == 0 ? "{}" : ",{}";
    anchors += (i == 0 ? R"({"$anchor":"a)" : R"(,{"$anchor":"a)") + std::to_string(i) + "\"}";
  }
  const std::string name(1'000'000, 'n');
  EXPECT_EQ(refusal(R"({"properties":{")" + name + R"(":{"anyOf":[)" + many + R"(]}}})"),
            "\"anyOf\" at #/properties/" + name.substr(0, 57) + "...: too many branches");
  EXPECT_THAT(refusal(R"({"$id":"http://a/)" + name + R"(","anyOf":[)" + anchors + "]}"),
              HasSubstr("\"$id\" at # makes a URI of more than 2048 bytes"));
}

TEST(Schema, AnInvalidTypeBesideBranchesIsNamedWithItsPlace) {
  EXPECT_THAT(
      refusal(
          R"({"properties":{"x":{"oneOf":[{"type":"object"},{"type":"null"}],"type":"strin"}}})"),
      HasSubstr("#/properties/x: \"type\": \"strin\" is not a type"));
}

TEST(Schema, TooManyBranchesAreRefusedByTheirKeyword) {
  std::string branches, needs;
  for (int i = 0; i < 60; ++i) {
    const std::string name = "\"k" + std::to_string(i) + "\"", comma = i == 0 ? "" : ",";
    branches +=
        comma + R"({"properties":{)" + name + R"(:{"type":"string"}},"required":[)" + name + "]}";
    needs += comma + name + R"(:["k)" + std::to_string((i + 1) % 60) + "\"]";
  }
  EXPECT_EQ(refusal(R"({"type":"object","oneOf":[)" + branches + "]}"),
            "\"oneOf\" at #: too many branches");
  EXPECT_EQ(refusal(R"({"type":"object","dependentRequired":{)" + needs + "}}"),
            "\"dependentRequired\" at #: too many branches");
}

// The parser would round such integers to doubles, and answers would then contain other numbers
// than the schema has.
TEST(Schema, RefusesIntegersThatWouldBeRounded) {
  EXPECT_EQ(refusal(R"({"const": 12345678901234567890123})"),
            "\"const\" at #: 12345678901234567890123 can't be enforced: it has more digits than "
            "are kept");
  EXPECT_THAT(refusal(R"({"enum": [1, {"a": -18446744073709551617}]})"),
              HasSubstr("\"enum\" at #: -184"));
  EXPECT_THAT(refusal(R"({"properties":{"enum":{"enum": [1, 99999999999999999999]}}})"),
              HasSubstr("\"enum\" at #/properties/enum: 99999"));
  EXPECT_THAT(refusal(R"({"anyOf":[{"type":"integer","maximum":99999999999999999999}]})"),
              HasSubstr("\"maximum\" at #/anyOf/0: 99999"));
  EXPECT_TRUE(passes(R"({"const": 18446744073709551615, "default": 99999999999999999999})",
                     "18446744073709551615"));
  EXPECT_TRUE(
      passes(R"({"type":"integer","maximum":100000000000000000000})", "99999999999999999999"));
}

// Returns an object schema with `count` properties of alternating types, p0 to p<count - 1>. `rest`: other keywords.
std::string wide_schema(int count, const std::string& rest) {
  const std::string types[] = {R"({"type":"integer"})", R"({"type":"string","title":"T"})",
                               R"({"enum":["a","b"]})"};
  std::string properties;
  for (int i = 0; i < count; ++i)
    properties += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\":" + types[i % 3];
  return R"({"type":"object",)" + rest + R"("properties":{)" + properties + "}}";
}

TEST(Schema, ThousandsOfPropertiesAreEnforced) {
  const std::string closed =
      wide_schema(4096, R"("required":["p4095"],"additionalProperties":false,)");
  EXPECT_TRUE(passes(closed, R"({"p0": 1, "p1": "x", "p4093": "y", "p4095": 2})"));
  EXPECT_FALSE(passes(closed, R"({"p0": 1})"));
  EXPECT_FALSE(passes(closed, R"({"p4094": 1, "p4095": 2})"));
  EXPECT_FALSE(passes(closed, R"({"p4095": 2, "p4096": 1})"));
  const std::string open = wide_schema(4096, "");
  EXPECT_TRUE(passes(open, R"({"p2": "b", "p4096": []})"));
  EXPECT_FALSE(passes(open, R"({"p2": "c"})"));
}

TEST(Schema, OneMemberTooManyIsRefusedWithItsKeywordAndTheLimit) {
  EXPECT_EQ(refusal(wide_schema(4097, "")),
            "in the schema, \"properties\" has more than 4096 members");
  EXPECT_THAT(refusal(wide_schema(513, R"("propertyNames":{"maxLength":9},)")),
              HasSubstr("\"propertyNames\" at #: at most 512 properties"));
  // Several wide objects share the time that one of 4,096 members takes.
  const std::string wide = wide_schema(2900, "");
  EXPECT_EQ(refusal(R"({"anyOf":[)" + wide + "]}"), "");
  EXPECT_THAT(refusal(R"({"anyOf":[)" + wide + "," + wide + "," + wide + "]}"),
              HasSubstr("too many objects of more than 512 members, among them \"properties\"; one "
                        "alone may have 4096"));
}

// A tool that is not strict only loses such a keyword.
TEST(Schema, LenientlyLeavesOutIntegersThatWouldBeRounded) {
  const auto compiled =
      compile_schema(R"({"type":"object","additionalProperties":false,"properties":{)"
                     R"("a":{"type":"integer","minimum":0,"maximum":99999999999999999999},)"
                     R"("b":{"not":{"const":99999999999999999999},"type":"boolean"}}})",
                     Strictness::kLenient);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message();
  EXPECT_THAT(compiled->warnings,
              testing::ElementsAre(HasSubstr("\"maximum\" at #/properties/a: 99999"),
                                   HasSubstr("\"not\" at #/properties/b: 99999")));
  EXPECT_TRUE(check_text(compiled->grammar, R"({"a":100000000000000000000,"b":true})").passed);
  EXPECT_FALSE(check_text(compiled->grammar, R"({"a":-1})").passed);
  EXPECT_FALSE(check_text(compiled->grammar, R"({"b":1})").passed);
}

// Clients in Go and C# write a null for what a tool lacks.
TEST(Schema, AKeywordThatIsNullSaysNothing) {
  constexpr char kNulls[] =
      R"({"type":"object","required":null,"additionalProperties":null,"$ref":null,"properties":{)"
      R"("a":{"type":"string","enum":null,"anyOf":null,"items":null,"minLength":null},"enum":{"const":null}}})";
  EXPECT_TRUE(passes(kNulls, R"({"a":"x","enum":null,"b":1})"));
  EXPECT_TRUE(passes(kNulls, "{}"));
  EXPECT_FALSE(passes(kNulls, R"({"a":1})"));
  EXPECT_FALSE(passes(kNulls, R"({"enum":1})"));
  EXPECT_THAT(refusal(R"({"properties":{"a":null}})"), HasSubstr("a schema must be an object"));
}

TEST(Schema, JsonsNullIsNoType) {
  EXPECT_THAT(refusal(R"({"type": null})"), HasSubstr("\"type\": null is not a type; use null"));
}

TEST(Schema, LenientlyNamesWhatIsLeftOut) {
  const auto compiled =
      compile_schema(R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}})",
                     Strictness::kLenient);
  ASSERT_TRUE(compiled.ok());
  ASSERT_EQ(compiled->warnings.size(), 1U);
  EXPECT_THAT(compiled->warnings[0], HasSubstr("\"uniqueItems\" at #/properties/a"));
  EXPECT_TRUE(check_text(compiled->grammar, R"({"a": [1, 1]})").passed);
}

TEST(Schema, ThatAdmitsNothingIsAnError) {
  for (const char* schema :
       {"false", R"({"type":"string","enum":[1]})", R"({"type":"integer","minimum":3,"maximum":2})",
        R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
        R"({"allOf":[{"type":"string"},{"type":"null"}]})",
        R"({"type":"array","minItems":2,"maxItems":1})",
        R"({"type":"object","minProperties":2,"maxProperties":1})"}) {
    EXPECT_THAT(refusal(schema), HasSubstr("no value fits it")) << schema;
  }
}

TEST(Schema, AnObjectThatCanNotExistIsNotBegun) {
  const auto compiled = compile_schema(
      R"({"type":"object","properties":{"a":{"type":"object","minProperties":1,"maxProperties":0},"b":{}}})",
      Strictness::kStrict);
  ASSERT_TRUE(compiled.ok());
  EXPECT_EQ(check_text(compiled->grammar, R"({"a":{}})").rejected_at,
            3U);  // a longer name would be allowed
  EXPECT_TRUE(check_text(compiled->grammar, R"({"b": 1})").passed);
}

TEST(Schema, LongEnumsAreCompiledSoon) {
  std::string schema = R"({"enum":[)";
  for (int i = 0; i < 100'000; ++i)
    schema += (i > 0 ? ",\"n" : "\"n") + std::to_string(i) + '"';
  schema += "]}";
  const std::clock_t begin = std::clock();
  EXPECT_TRUE(passes(schema, "\"n99999\""));
  EXPECT_FALSE(passes(schema, "\"n100000\""));
  EXPECT_LT(std::clock() - begin, std::clock_t{20} * CLOCKS_PER_SEC);
}

// Definitions of which each leads to the next one: `before` and `after` stand around the reference.
std::string chain(int length, const std::string& before, const std::string& after) {
  std::string definitions;
  for (int i = 0; i < length; ++i) {
    definitions += "\"d" + std::to_string(i) + "\":" + before + R"({"$ref":"#/$defs/d)" +
                   std::to_string(i + 1) + "\"}" + after + ",";
  }
  return R"({"$ref":"#/$defs/d0","$defs":{)" + definitions + "\"d" + std::to_string(length) +
         R"(":{"type":"null"}}})";
}

TEST(Schema, LongChainsOfDefinitionsAreCompiledSoon) {
  for (const std::string& schema :
       {chain(4000, R"({"type":"array","items":)", "}"),
        chain(4000, R"({"type":"object","required":["a"],"properties":{"a":)", "}}"),
        chain(100, R"({"allOf":[)", "]}")}) {
    const std::clock_t begin = std::clock();
    EXPECT_EQ(refusal(schema), "") << schema.substr(0, 80);
    EXPECT_LT(std::clock() - begin, std::clock_t{20} * CLOCKS_PER_SEC) << schema.substr(0, 80);
  }
}

// Each member is checked against the rest of the schema.
TEST(Schema, ConstantsAreCheckedSoon) {
  std::string members = "\"a\"", twice;
  for (int i = 0; i < 20'000; ++i)
    members += ",\"a" + std::to_string(i) + '"';
  for (int i = 0; i < 28; ++i) {
    const std::string next = R"({"$ref":"#/$defs/d)" + std::to_string(i + 1) + "\"}";
    twice += "\"d" + std::to_string(i) + R"(":{"anyOf":[)" + next + "," + next + "]},";
  }
  const std::string ways =
      R"({"enum":[1,2],"$ref":"#/$defs/d0","$defs":{)" + twice + "\"d28\":false}}";
  const std::string circular = R"({"enum":[1,2],"anyOf":[{"$ref":"#"},{"$ref":"#"}]})";
  const std::clock_t begin = std::clock();
  EXPECT_TRUE(passes(
      R"({"type":"string","pattern":"^(a|b)([0-9]{1,9}|[a-f]{3,99})?$","enum":[)" + members + "]}",
      "\"a7\""));
  EXPECT_THAT(refusal(ways), HasSubstr("takes too long"));
  EXPECT_NE(refusal(circular), "");
  EXPECT_FALSE(compile_schema(circular, Strictness::kLenient).ok());
  EXPECT_LT(std::clock() - begin, std::clock_t{20} * CLOCKS_PER_SEC);
}

// Returns `before`, `count` members that `member` makes, and `after`. Commas stand between the members.
template <typename Member>
std::string repeated(int count, const std::string& before, const Member& member,
                     const std::string& after) {
  std::string out = before;
  for (int i = 0; i < count; ++i)
    out += (i > 0 ? "," : "") + member(std::to_string(i));
  return out + after;
}

// An expression that takes many states is compiled once for all of the members.
TEST(Schema, ConstantObjectsAreCheckedSoon) {
  const std::string texts = repeated(
      20'000, R"({"enum":[)", [](const std::string& i) { return R"({"a":"b)" + i + "\"}"; }, "]");
  const std::string numbers = repeated(
      20'000, R"({"enum":[)", [](const std::string& i) { return R"({"a":)" + i + "}"; }, "]");
  const std::string many = repeated(
      1000, R"("patternProperties":{)", [](const std::string& i) { return "\"^p" + i + "\":true"; },
      "}");
  const std::clock_t begin = std::clock();
  EXPECT_EQ(
      refusal(texts +
              R"(,"dependentSchemas":{"a":{"properties":{"a":{"pattern":"^(?=.*b.{9}).*$"}}}}})"),
      "the schema: no value fits it: its keywords contradict each other");
  EXPECT_EQ(refusal(texts + R"(,"dependencies":{"a":["a"],"b":["c"]}})"), "");
  EXPECT_EQ(refusal(numbers + R"(,"patternProperties":{"^(?=.*x.{9}).*$":false}})"), "");
  EXPECT_THAT(refusal(numbers + "," + many + "}"), HasSubstr("takes too long"));
  EXPECT_LT(std::clock() - begin, std::clock_t{20} * CLOCKS_PER_SEC);
}

TEST(Schema, ConstantObjectsHaveWhatTheirMembersAskFor) {
  for (const char* asked : {R"("dependencies":{"b":["c"]})", R"("dependentRequired":{"b":["c"]})",
                            R"("dependentSchemas":{"b":{"required":["c"]}})",
                            R"("patternProperties":{"^c":{"type":"integer"},"b":{"minimum":2}})"}) {
    const std::string schema = std::string(R"({"enum":[{"b":1},{"b":3,"c":2}],)") + asked + "}";
    EXPECT_TRUE(passes(schema, R"({"b": 3, "c": 2})")) << schema;
    EXPECT_FALSE(passes(schema, R"({"b": 1})")) << schema;
  }
}

// What stands beside the branches is the same for each pair of them.
TEST(Schema, TagsTellBranchesApartBesideManyRequiredNames) {
  const auto name = [](const std::string& i) { return "\"a" + i + "\""; };
  const auto text = [&](const std::string& i) { return name(i) + R"(:{"type":"string"})"; };
  const auto branch = [](const std::string& i) {
    return R"({"type":"object","properties":{"kind":{"const":"k)" + i +
           R"("}},"required":["kind"]})";
  };
  const std::string head = repeated(20, R"({"type":"object","required":[)", name, "],") +
                           repeated(20, R"("properties":{)", text, "},");
  EXPECT_EQ(refusal(head + repeated(100, R"("oneOf":[)", branch, "]}")), "");
  // The first two branches overlap, so the other names are tried.
  EXPECT_EQ(refusal(head + repeated(60, R"("oneOf":[{"properties":{"kind":{"const":"k0"}}},)",
                                    branch, "]}")),
            "");
}

TEST(Schema, HostileOnesEndInAnErrorSoon) {
  std::string deep, groups = R"({"allOf":[)";
  for (int i = 0; i < 100'000; ++i)
    deep += R"({"not":)";
  for (int i = 0; i < 40; ++i) {
    groups += std::string(i > 0 ? "," : "") +
              R"({"anyOf":[{"minLength":1},{"maxLength":2},{"pattern":"a"},{"pattern":"b"}]})";
  }
  groups += "]}";
  std::string wide = R"({"properties":{)";
  for (int i = 0; i < 200'000; ++i)
    wide += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":{}";
  const std::string hostile[] = {
      deep,
      wide + "}}",
      groups,
      R"g({"type":"string","pattern":"(a|b)*a(a|b){30}$"})g",
      R"g({"type":"string","pattern":"((a{1,100}){1,100}){1,100}b"})g",
      R"g({"type":"string","pattern":"^(?=.*a.{20})(?=.*b.{20})(?=.*c.{20})"})g",
      "{\"type\":\"string\",\"pattern\":\"" + std::string(5000, '(') + "\"}",
      R"g({"type":"string","pattern":"^(a?){5000}a{5000}$"})g",
      chain(4000, R"({"allOf":[)", "]}"),
      chain(4000, R"({"not":)", "}"),
      chain(4000, R"({"anyOf":[{"type":"null"},)", "]}"),
      chain(4000, R"({"unevaluatedProperties":false,"anyOf":[{"required":["a"]},)", "]}"),
  };
  for (const std::string& schema : hostile) {
    // The processor's time does not depend on what else the machine does.
    const std::clock_t begin = std::clock();
    EXPECT_NE(refusal(schema), "") << schema.substr(0, 80);
    EXPECT_LT(std::clock() - begin, std::clock_t{20} * CLOCKS_PER_SEC) << schema.substr(0, 80);
  }
  // These schemas refer to themselves. Compiling them must end, with any result.
  for (const char* circular : {R"({"$ref":"#"})", R"({"allOf":[{"not":{"$ref":"#"}}]})",
                               R"({"anyOf":[{"$ref":"#"},{"$ref":"#"}]})"}) {
    (void)refusal(circular);
  }
}

}  // namespace
}  // namespace bulkhead::constrain
