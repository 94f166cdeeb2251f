// All schemas of the fixtures: valid instances are accepted (in the schema's order of properties), invalid ones are
// not, and an error names the keyword that is refused.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/fixtures.hpp"
#include "worker/constrain/constraint.hpp"

namespace bulkhead::constrain {
namespace {

using Json = nlohmann::ordered_json;

// Instances whose properties have another order than the schema's, and one whose type the schema leaves open although
// it names properties.
const std::set<std::string> kOtherOrder = {"allof-of-ref-and-extra", "object-property-order",
                                           "ref-defs", "suite-allof-base", "suite-properties"};
// Keywords for which a schema may be refused.
const std::set<std::string> kRefused = {"uniqueItems"};

std::vector<std::string> spellings(const Json& value) {
  return {value.dump(), value.dump(-1, ' ', true), value.dump(2), value.dump(1, '\t')};
}

TEST(SchemaFixtures, LetThroughWhatIsValidAndNothingElse) {
  const std::filesystem::path folder = test::fixtures() / "schemas";
  if (!std::filesystem::is_directory(folder)) GTEST_SKIP() << "no fixtures at " << folder;
  std::size_t schemas = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    SCOPED_TRACE(entry.path().filename().string());
    std::ifstream file(entry.path());
    const Json fixture = Json::parse(file);
    ++schemas;
    const auto compiled = compile_schema(fixture["schema"].dump(), Strictness::kStrict);
    if (!compiled.ok()) {
      ++refused;
      EXPECT_TRUE(std::any_of(kRefused.begin(), kRefused.end(), [&](const std::string& keyword) {
        return compiled.error().message().find('"' + keyword + '"') != std::string::npos;
      })) << compiled.error().message();
      continue;
    }
    const bool other_order = kOtherOrder.contains(entry.path().stem().string());
    for (const Json& value : fixture["valid"]) {
      for (const std::string& text : spellings(value)) {
        const Checked checked = check_text(compiled->grammar, text);
        EXPECT_TRUE(checked.passed || other_order) << text << " at " << checked.rejected_at;
      }
    }
    for (const Json& value : fixture["invalid"]) {
      for (const std::string& text : spellings(value)) {
        EXPECT_FALSE(check_text(compiled->grammar, text).passed) << text;
      }
    }
    if (!fixture.contains("not_json") || fixture["not_json"].is_null()) continue;
    for (const Json& text : fixture["not_json"]) {
      EXPECT_FALSE(check_text(compiled->grammar, text.get<std::string>()).passed) << text;
    }
  }
  EXPECT_GT(schemas, 90U);
  EXPECT_LE(refused, 1U);
}

}  // namespace
}  // namespace bulkhead::constrain
