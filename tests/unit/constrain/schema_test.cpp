// The keywords of schemas and their combinations: which values they let through, in every spelling of JSON.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/sample.hpp"
#include "tests/unit/constrain/schema_checks.hpp"
#include "worker/constrain/constraint.hpp"

namespace bulkhead::constrain {
namespace {

using ::testing::HasSubstr;

TEST(Schema, StringsAreSpelledInAllWaysOfJson) {
  const std::string schema = R"({"const": "é\"😀\n/"})";
  EXPECT_TRUE(passes(schema, "\"é\\\"😀\\n/\""));
  EXPECT_TRUE(passes(schema, R"("\u00e9\u0022\ud83d\uDE00\u000a\/")"));
  EXPECT_FALSE(passes(schema, R"("\u00e9\u0022\ud83d")"));
  EXPECT_FALSE(passes(R"({"type": "string"})", "\"\\ud83d\""));
  EXPECT_FALSE(passes(R"({"type": "string"})", "\"\xC0\x80\""));
  EXPECT_FALSE(passes(R"({"type": "string"})", "\"\xED\xA0\x80\""));
}

TEST(Schema, RejectsAtTheFirstByteThatCanNotBeCompleted) {
  const auto compiled =
      compile_schema(R"({"type": "string", "pattern": "^[à-å]$"})", Strictness::kStrict);
  ASSERT_TRUE(compiled.ok());
  EXPECT_EQ(check_text(compiled->grammar, "\"\xC3\xA0\"").rejected_at, 4U);
  EXPECT_EQ(check_text(compiled->grammar, "\"\xC4\xA0\"").rejected_at, 1U);
  EXPECT_EQ(check_text(compiled->grammar, "\"\xC3\xB0\"").rejected_at, 2U);
  EXPECT_EQ(check_text(compiled->grammar, "\"\\u01").rejected_at, 4U);
  EXPECT_EQ(check_text(compiled->grammar, "\"\\ud8").rejected_at, 3U);
}

TEST(Schema, LengthsCountCharactersAlsoWithAPattern) {
  EXPECT_TRUE(passes(R"({"type":"string","maxLength":2})", "\"😀\\ud83d\\ude00\""));
  EXPECT_FALSE(passes(R"({"type":"string","maxLength":2})", "\"abc\""));
  // Every length is odd, so there is no text of two characters.
  EXPECT_THAT(refusal(R"({"type":"string","pattern":"^a(bc)*$","minLength":2,"maxLength":2})"),
              HasSubstr("no value fits it: its keywords"));
  EXPECT_TRUE(
      passes(R"({"type":"string","pattern":"^a(bc)*$","minLength":2,"maxLength":4})", "\"abc\""));
  EXPECT_FALSE(
      passes(R"({"type":"string","pattern":"^a(bc)*$","minLength":2,"maxLength":4})", "\"a\""));
}

// A byte is refused as soon as no text of an allowed length can follow it.
TEST(Schema, ATextWithAPatternAndALengthCanAlwaysEnd) {
  const auto rejected_at = [](const char* schema, const char* text) {
    const auto compiled = compile_schema(schema, Strictness::kStrict);
    EXPECT_TRUE(compiled.ok());
    return check_text(compiled->grammar, text).rejected_at;
  };
  EXPECT_EQ(rejected_at(R"({"type":"string","pattern":"^(ab)*$","maxLength":5})", "\"ababa"), 5U);
  EXPECT_EQ(rejected_at(R"({"type":"string","pattern":"^(a?b?|c{0,9})$","minLength":3})", "\"ab"),
            1U);
  EXPECT_EQ(
      rejected_at(R"({"type":"string","pattern":"^[^<]*$","minLength":2,"maxLength":3})", "\"abcd"),
      4U);
  EXPECT_EQ(
      rejected_at(R"({"type":"string","pattern":"^[^<]*$","minLength":2,"maxLength":3})", "\"a\""),
      2U);
}

TEST(Schema, NumbersWithinBoundsAndNoOthers) {
  const std::string range = R"({"type":"integer","minimum":-12,"maximum":1000000007})";
  for (const char* good : {"-12", "0", "7", "1000000007", "999999999"})
    EXPECT_TRUE(passes(range, good)) << good;
  for (const char* bad : {"-13", "1000000008", "01", "1.5", "1e3", "-", "2000000000"})
    EXPECT_FALSE(passes(range, bad)) << bad;
  const std::string decimal = R"({"type":"number","exclusiveMinimum":-0.5,"maximum":12.25})";
  for (const char* good : {"-0.49", "0", "0.0", "12.25", "12.250", "12", "12.2499"})
    EXPECT_TRUE(passes(decimal, good)) << good;
  for (const char* bad : {"-0.5", "-0.50", "12.251", "13", "-1", "12."})
    EXPECT_FALSE(passes(decimal, bad)) << bad;
  EXPECT_TRUE(passes(R"({"type":"integer","multipleOf":7})", "693"));
  EXPECT_FALSE(passes(R"({"type":"integer","multipleOf":7})", "694"));
  EXPECT_TRUE(passes(R"({"type":"number","minimum":1e3})", "1000"));
  EXPECT_FALSE(passes(R"({"type":"number","minimum":1e3})", "999.99"));
}

TEST(Schema, BoundsMayBeExclusiveAsInOpenApi3) {
  const std::string open =
      R"({"type":"integer","minimum":3,"exclusiveMinimum":true,"maximum":5,"exclusiveMaximum":false})";
  for (const char* good : {"4", "5"})
    EXPECT_TRUE(passes(open, good)) << good;
  for (const char* bad : {"3", "6"})
    EXPECT_FALSE(passes(open, bad)) << bad;
}

TEST(Schema, MultiplesMayHaveBounds) {
  for (const int divisor : {2, 256, 500, 700, 1000, 1024}) {
    const std::string schema =
        R"({"type":"integer","minimum":0,"multipleOf":)" + std::to_string(divisor) + "}";
    SCOPED_TRACE(schema);
    EXPECT_TRUE(passes(schema, "0"));
    EXPECT_TRUE(passes(schema, std::to_string(12'345 * divisor)));
    EXPECT_FALSE(passes(schema, std::to_string(12'345 * divisor + 1)));
    EXPECT_FALSE(passes(schema, "-" + std::to_string(divisor)));
  }
}

// A reader rounds a number to a double. The refused numbers would then lie beyond the bounds or be whole.
TEST(Schema, FractionsWithinBoundsSurviveRounding) {
  const std::string below_one = R"({"type":"number","exclusiveMaximum":1})";
  EXPECT_TRUE(passes(below_one, "0.99999999999999"));
  EXPECT_FALSE(passes(below_one, "0.99999999999999999999"));
  EXPECT_TRUE(passes(below_one, "-123456789012345678901"));
  EXPECT_FALSE(passes(R"({"type":"number","not":{"type":"integer"}})", "123456789012345678.5"));
  EXPECT_TRUE(passes(R"({"type":"number","not":{"type":"integer"}})", "1234567890123.5"));
  EXPECT_TRUE(passes(R"({"type":"number","exclusiveMinimum":0,"maximum":1e-20})",
                     "0.000000000000000000005"));
  EXPECT_TRUE(passes(R"({"type":"number","not":{"multipleOf":2}})", "2.5"));
  EXPECT_FALSE(passes(R"({"type":"number","not":{"multipleOf":2}})", "2.00000000000000000001"));
  EXPECT_TRUE(passes(R"({"type":"number","not":{"const":0.5}})", "0.5000000000001"));
  EXPECT_FALSE(passes(R"({"type":"number","not":{"const":0.5}})", "0.50000000000000000001"));
}

TEST(Schema, BoundsOfAllSizesAndSignsHold) {
  const double bounds[] = {-120.5, -100, -10.25, -1, -0.5, 0, 0.05, 0.5, 9, 10, 99.75, 1000};
  for (const double low : bounds) {
    for (const double high : bounds) {
      if (low >= high) continue;
      const nlohmann::json schema = {
          {"type", "number"}, {"exclusiveMinimum", low}, {"maximum", high}};
      const auto compiled = compile_schema(schema.dump(), Strictness::kStrict);
      ASSERT_TRUE(compiled.ok()) << schema;
      for (int quarter = -4804; quarter <= 4804; quarter += quarter % 3 == 0 ? 1 : 7) {
        const double value = quarter / 4.0;
        const std::string text = nlohmann::json(value).dump();
        EXPECT_EQ(check_text(compiled->grammar, text).passed, value > low && value <= high)
            << text << " and " << schema;
      }
    }
  }
}

TEST(Schema, AnyCombinationOfManyOptionalProperties) {
  std::string properties, one, all;
  for (int i = 0; i < 80; ++i) {
    const std::string name = "\"p" + std::to_string(i) + "\"";
    properties += (i > 0 ? "," : "") + name + R"(:{"type":"integer"})";
    all += (i > 0 ? ", " : "") + name + ": 1";
  }
  const std::string schema =
      R"({"type":"object","additionalProperties":false,"properties":{)" + properties + "}}";
  EXPECT_TRUE(passes(schema, "{}"));
  EXPECT_TRUE(passes(schema, "{" + all + "}"));
  EXPECT_TRUE(passes(schema, R"({"p3": 1, "p79": 2})"));
  EXPECT_FALSE(passes(schema, R"({"p3": 1, "p3": 2})"));
  EXPECT_FALSE(passes(schema, R"({"p80": 1})"));
}

TEST(Schema, OtherPropertiesNeverRepeatADeclaredOne) {
  const std::string schema =
      R"({"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]})";
  EXPECT_TRUE(passes(schema, R"({"id": 1, "idx": "a", "i": []})"));
  EXPECT_FALSE(passes(schema, R"({"id": 1, "id": "a"})"));
  EXPECT_FALSE(passes(schema, R"({"id": 1, "\u0069d": "a"})"));
}

TEST(Schema, BranchesThatExcludeEachOther) {
  const std::string one_of =
      R"({"oneOf":[{"type":"integer","multipleOf":2},{"type":"integer","multipleOf":3}]})";
  EXPECT_TRUE(passes(one_of, "4"));
  EXPECT_TRUE(passes(one_of, "9"));
  EXPECT_FALSE(passes(one_of, "12"));
  const std::string not_enum =
      R"({"type":["string","integer","null"],"not":{"enum":["root",7,null]}})";
  EXPECT_TRUE(passes(not_enum, "\"roo\""));
  EXPECT_FALSE(passes(not_enum, "\"root\""));
  EXPECT_FALSE(passes(not_enum, "7"));
  EXPECT_TRUE(passes(not_enum, "70"));
  EXPECT_FALSE(passes(not_enum, "null"));
  const std::string of_constants =
      R"({"oneOf":[{"anyOf":[{"type":"object"},{"enum":[1,"a",null]}]},{"type":"integer"}]})";
  EXPECT_TRUE(passes(of_constants, "null"));
  EXPECT_TRUE(passes(of_constants, "2"));
  EXPECT_FALSE(passes(of_constants, "1"));
  EXPECT_FALSE(passes(of_constants, "1.0"));
}

// Ten kinds of objects, told apart by a tag. `inside` is what each branch says beside its properties, `outside` what
// the schema says beside its branches.
std::string tagged(const std::string& outside, const std::string& inside) {
  std::string branches;
  for (int i = 0; i < 10; ++i) {
    const std::string kind = std::to_string(i);
    branches += (i > 0 ? "," : "") + std::string(R"({"properties": {"kind": {"enum": ["k)") + kind +
                R"("]}, "name": {"type": "string"}, "n)" + kind + R"(": {"type": "integer"}})" +
                inside + "}";
  }
  return R"({"oneOf": [)" + branches + "]" + outside + "}";
}

// A type or a required tag counts wherever it stands, and a schema with properties and no type means objects.
TEST(Schema, ATagTellsBranchesApartWhereverTheRestOfThemStands) {
  const std::string required = R"(, "required": ["kind", "name"])";
  const std::string type = R"(, "type": "object")";
  for (const std::string& schema :
       {tagged("", required + type), tagged(type, required), tagged("", required),
        tagged(required, type), tagged(required + type, ""), tagged(required, "")}) {
    SCOPED_TRACE(schema);
    EXPECT_TRUE(passes(schema, R"({"kind": "k7", "name": "a", "n7": 1})"));
    EXPECT_FALSE(passes(schema, R"({"kind": "k7", "name": "a", "n7": "1"})"));
    EXPECT_FALSE(passes(schema, R"({"kind": "k10", "name": "a"})"));
    EXPECT_FALSE(passes(schema, R"({"name": "a", "n7": 1})"));
    EXPECT_FALSE(passes(schema, "null"));
  }
}

// What is not an object is valid under several such branches.
TEST(Schema, BranchesAboutObjectsExcludeEachOthersTexts) {
  const std::string branches =
      R"("oneOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]},
                   {"properties": {"a": {"const": 2}}, "required": ["a"]}])";
  const std::string schema =
      R"({"allOf": [{"type": ["object", "string", "null"]}, {)" + branches + "}]}";
  EXPECT_TRUE(passes(schema, R"({"a": 2})"));
  EXPECT_FALSE(passes(schema, R"("a")"));
  EXPECT_FALSE(passes(schema, "null"));
}

TEST(Schema, SiblingsOfReferencesCountExceptInDraft7) {
  const std::string rest = R"("$defs":{"a":{"type":"integer"}},"$ref":"#/$defs/a","minimum":5})";
  EXPECT_FALSE(passes("{" + rest, "4"));
  EXPECT_TRUE(passes(R"({"$schema":"http://json-schema.org/draft-07/schema#",)" + rest, "4"));
}

TEST(Schema, UnevaluatedPropertiesSeeWhatIsInPlace) {
  const std::string schema =
      R"({"type":"object","allOf":[{"properties":{"a":{"type":"integer"}}}],"properties":{"b":{}},"unevaluatedProperties":false})";
  EXPECT_TRUE(passes(schema, R"({"a": 1, "b": 2})"));
  EXPECT_FALSE(passes(schema, R"({"a": 1, "c": 2})"));
  const std::string required = R"({"type":"object","required":["a"],"unevaluatedProperties":)";
  EXPECT_TRUE(passes(required + R"({"type":"string"}})", R"({"a": "x"})"));
  EXPECT_FALSE(passes(required + R"({"type":"string"}})", R"({"a": 1})"));
  EXPECT_THAT(refusal(required + "false}"), HasSubstr("no value fits it"));
}

// A text is at all constants at a time that it may still become. They differ in a number or a string, at the beginning
// or at the end, or in a name.
TEST(Schema, AnEnumOfManySimilarConstantsTakesEachOfThem) {
  constexpr int kMany = 20'000;
  const std::string forms[] = {R"({"id": @, "name": "n@", "more": [true, null]})",
                               R"({"name": "n\u00e9 @"})", R"([[1, 2], @, "x"])",
                               R"({"k@": {"a": 1}})"};
  for (const std::string& form : forms) {
    const auto constant = [&form](int a, int b) {
      std::string out = form;
      for (const int number : {a, b}) {
        if (const std::size_t at = out.find('@'); at != out.npos)
          out.replace(at, 1, std::to_string(number));
      }
      return out;
    };
    std::string list, branches;
    for (int i = 0; i < kMany; ++i) {
      list += (i == 0 ? "" : ",") + constant(i, i);
      if (i < kMany / 10)
        branches += std::string(i == 0 ? "" : ",") + R"({"const":)" + constant(i, i) + "}";
    }
    for (const std::string& schema :
         {R"({"enum":[)" + list + "]}", R"({"anyOf":[)" + branches + "]}"}) {
      const auto compiled = compile_schema(schema, Strictness::kStrict);
      ASSERT_TRUE(compiled.ok()) << form << ' ' << compiled.error().message();
      const auto takes = [&](const std::string& text) {
        return check_text(compiled->grammar, text).passed;
      };
      for (const int i : {0, 1, 10, 1999})
        EXPECT_TRUE(takes(constant(i, i))) << constant(i, i);
      EXPECT_FALSE(takes(constant(kMany, kMany)));
      EXPECT_EQ(takes(constant(1, 2)), constant(1, 1) == constant(1, 2));
    }
  }
  EXPECT_TRUE(passes(R"({"enum":[[1,"a"],[1.0,"b"],[1.5,"c"]]})", R"([1.0, "a"])"));
  EXPECT_TRUE(passes(R"({"enum":[[1,"a"],[1.0,"b"],[1.5,"c"]]})", R"([1, "\u0062"])"));
  EXPECT_FALSE(passes(R"({"enum":[[1,"a"],[1.0,"b"],[1.5,"c"]]})", R"([1.5, "a"])"));
}

// What a schema says within `not`, a condition that fails or another branch of oneOf evaluates no member.
TEST(Schema, OnlySchemasThatHoldEvaluateMembers) {
  const std::string none = R"("type":"object","unevaluatedProperties":false})";
  const std::string condition =
      R"({"if":{"properties":{"a":{"const":1}},"required":["a"]},"then":{},)" + none;
  EXPECT_TRUE(passes(condition, R"({"a": 1})"));
  EXPECT_FALSE(passes(condition, R"({"a": 2})"));
  const std::string choice = R"({"oneOf":[{"properties":{"a":{"type":"string"}},"required":["a"]},)"
                             R"({"properties":{"b":{"type":"string"}},"required":["b"]}],)" +
                             none;
  EXPECT_TRUE(passes(choice, R"({"a": "x"})"));
  EXPECT_TRUE(passes(choice, R"({"b": "x"})"));
  EXPECT_FALSE(passes(choice, R"({"a": "x", "b": 1})"));
  const std::string twice =
      R"({"properties":{"a":{}},"not":{"not":{"properties":{"b":{"const":1}},"required":["b"]}},)" +
      none;
  EXPECT_THAT(refusal(twice), HasSubstr("no value fits it"));
  const std::string declared =
      R"({"properties":{"b":{}},"not":{"properties":{"b":{"const":1}}},)" + none;
  EXPECT_TRUE(passes(declared, R"({"b": 2})"));
  EXPECT_FALSE(passes(declared, R"({"b": 1})"));
}

TEST(Schema, ReferencesAndBranchesLeadToUnevaluatedProperties) {
  const std::string defs =
      R"("$defs":{"A":{"type":"object","properties":{"a":{"type":"integer"}},"unevaluatedProperties":{"not":{}}}}})";
  for (const std::string way : {R"({"$ref":"#/$defs/A","description":"x",)",
                                R"({"anyOf":[{"$ref":"#/$defs/A"},{"type":"null"}],)",
                                R"({"oneOf":[{"$ref":"#/$defs/A"},{"type":"array"}],)",
                                R"({"allOf":[{"$ref":"#/$defs/A"}],)"}) {
    EXPECT_TRUE(passes(way + defs, R"({"a": 1})")) << way;
    EXPECT_FALSE(passes(way + defs, R"({"a": 1, "b": 1})")) << way;
    EXPECT_FALSE(passes(way + defs, R"({"a": "x"})")) << way;
  }
  EXPECT_THAT(refusal(R"({"properties":{"b":{}},"allOf":[{"$ref":"#/$defs/A"}],)" + defs),
              HasSubstr("\"unevaluatedProperties\" at #/$defs/A"));
}

// Python's \w matches é and ECMA-262's does not; an answer must be valid for both.
TEST(Schema, KeysThatSomePatternsMayMatchAreHeldToBothReadings) {
  const std::string schema =
      R"({"type":"object","patternProperties":{"^\\w+$":{"type":"integer"}}})";
  EXPECT_TRUE(passes(schema, R"({"a": 1, "-": "x"})"));
  EXPECT_FALSE(passes(schema, R"({"é": "x"})"));
  const std::string declared =
      R"({"type":"object","properties":{"é":{}},"patternProperties":{"^\\w+$":{"type":"integer"}}})";
  EXPECT_FALSE(passes(declared, R"({"é": "x"})"));
  EXPECT_TRUE(passes(declared, R"({"é": 1})"));
  const std::string no_digit = R"({"type":"string","not":{"pattern":"\\d"}})";
  EXPECT_TRUE(passes(no_digit, "\"x\""));
  EXPECT_FALSE(passes(no_digit, "\"٣\""));
  EXPECT_FALSE(passes(R"({"type":"string","not":{"pattern":"^.$"}})", R"("\r")"));
}

// In Python, $ also matches before a line end that ends the text.
TEST(Schema, TextsThatAnEndOfAPatternMayMatchAreHeldToBothReadings) {
  const std::string not_b = R"({"type":"string","not":{"pattern":"b$"}})";
  EXPECT_TRUE(passes(not_b, R"("b\n\n")"));
  EXPECT_FALSE(passes(not_b, R"("b")"));
  EXPECT_FALSE(passes(not_b, R"("b\n")"));
  EXPECT_FALSE(passes(R"({"type":"string","pattern":"b$"})", R"("b\n")"));
  const std::string no_b = R"s({"type":"string","pattern":"^(?!.*b$)"})s";
  EXPECT_FALSE(passes(no_b, R"("ab\n")"));
  EXPECT_TRUE(passes(no_b, R"("bc\n")"));
}

TEST(Schema, KnowsTheFormatsThatClientsLibrariesWrite) {
  const auto is = [](const std::string& format, const std::string& text) {
    return passes(R"({"type":"string","format":")" + format + "\"}", '"' + text + '"');
  };
  EXPECT_TRUE(is("path", "any/path"));
  EXPECT_TRUE(is("base64", "aGk="));
  EXPECT_FALSE(is("base64", "aGk"));
  EXPECT_TRUE(is("cidrv4", "10.0.0.0/8"));
  EXPECT_FALSE(is("cidrv4", "10.0.0.0/33"));
  EXPECT_TRUE(is("ulid", "01ARZ3NDEKTSV4RRFFQ69G5FAV"));
  EXPECT_TRUE(is("e164", "+4712345678"));
  EXPECT_FALSE(is("e164", "4712345678"));
}

TEST(Schema, AddressesMayHaveAllTheirParts) {
  const auto is = [](const std::string& format, const std::string& text) {
    return passes(R"({"type":"string","format":")" + format + "\"}", '"' + text + '"');
  };
  for (const char* uri : {"http://127.0.0.1:11434/v1", "http://x:65535", "file:///etc/hosts",
                          "postgresql://user:word@db:5432/x?ssl=1", "http://[2001:db8::1]:80/",
                          "http://[::ffff:10.0.0.1]", "tel:+47-12345678", "mailto:a@b.c",
                          "urn:isbn:0451450523", "https://en.wikipedia.org/wiki/C_(x)#y"}) {
    EXPECT_TRUE(is("uri", uri)) << uri;
  }
  for (const char* uri :
       {"http://x:65536", "http://x:123456", "http://", "http:///x", "http://[::g]", "http://a@b@c",
        "http://[::1", "/etc/hosts", "http://x y"}) {
    EXPECT_FALSE(is("uri", uri)) << uri;
  }
  EXPECT_TRUE(is("ipv6", "::ffff:10.0.0.1"));
  EXPECT_FALSE(is("ipv6", "::ffff:10.0.0.256"));
  EXPECT_FALSE(is("ipv6", "::ffff:10.0.0"));
}

// Validators check what Punycode stands for, which an expression can't; and RFC 1123 bounds labels and names.
TEST(Schema, HostnamesAreThoseThatAnyValidatorTakes) {
  const auto is = [](const std::string& text) {
    for (const char* format : {"hostname", "idn-hostname"}) {
      const std::string schema = R"({"type":"string","format":")" + std::string(format) + "\"}";
      if (!passes(schema, '"' + text + '"')) return false;
    }
    return passes(R"({"type":"string","format":"email"})", "\"me@" + text + '"');
  };
  const std::string most(63, 'a');
  std::size_t tried = 0;
  for (const std::string& name :
       {std::string("localhost"), std::string("a.b"), std::string("a-b.c--d.exa---f.example"),
        std::string("ec2-12-34-56-78.us-west-2.compute.amazonaws.com"), most + ".com",
        "www." + most + ".s3.eu-central-1.amazonaws.com", most + "." + most + "." + most}) {
    if (tried++ % test::kStride == 0) {
      EXPECT_TRUE(is(name)) << name;
    }
  }
  for (const std::string& name :
       {std::string("xn--x"), std::string("www.xn--a-b.com"), std::string("ab--c.com"),
        std::string("a-"), std::string("-a"), std::string("a..b"), std::string("a."),
        std::string("a_b"), most + "a.com", most + "." + most + "." + most + "." + most}) {
    if (tried++ % test::kStride == 0) {
      EXPECT_FALSE(is(name)) << name;
    }
  }
}

TEST(Schema, AnIdBesideARefDoesNotCountInDraft7) {
  constexpr const char* kRest = R"("$id": "http://a.b/base/", "definitions": {
      "x": {"$id": "http://a.b/foo.json", "type": "string"},
      "y": {"$id": "foo.json", "type": "number"}},
      "allOf": [{"$id": "http://a.b/", "$ref": "foo.json"}]})";
  const std::string draft7 =
      R"({"$schema": "http://json-schema.org/draft-07/schema#", )" + std::string(kRest);
  EXPECT_TRUE(passes(draft7, "1"));
  EXPECT_FALSE(passes(draft7, R"("a")"));
  EXPECT_TRUE(passes("{" + std::string(kRest), R"("a")"));
}

}  // namespace
}  // namespace bulkhead::constrain
