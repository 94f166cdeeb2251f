// A JSON schema as it came: where its subschemas are, what `$ref` means, and schemas made on the way
// (what `not` becomes). One thread.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <nlohmann/json.hpp>

#include "config/base/error.hpp"

namespace bulkhead::constrain {

using Json = nlohmann::ordered_json;  // properties in the order they came

// A keyword of ours, which no JSON text of a user may hold: {kLink: n} is the n-th linked schema.
inline constexpr const char* kLink = "\x01link";
inline constexpr const char* kNotEnum = "\x01not-enum";
inline constexpr const char* kNotPattern = "\x01not-pattern";
inline constexpr const char* kNotFormat = "\x01not-format";
inline constexpr const char* kNotMultiple = "\x01not-multiple";
inline constexpr const char* kNotInteger = "\x01not-integer";

class SchemaDocument {
 public:
  // kInvalidArgument for what is no schema; kResourceExhausted past the limits of size and depth.
  static Result<std::unique_ptr<SchemaDocument>> read(std::string_view text);

  const Json* root() const { return &root_; }
  bool draft7() const { return draft7_; }

  // What `reference` in schema `at` means. kUnsupported for what lies in another document.
  Result<const Json*> resolve(const Json* at, const std::string& reference) const;
  // "#/properties/a" for messages; "#" where it isn't known.
  std::string path(const Json* schema) const;

  // A schema made on the way; it lives as long as the document.
  const Json* keep(Json schema);
  // {kLink: n}, and the schema that such a one means (nullptr for another one).
  Json link(const Json* schema);
  const Json* linked(const Json& schema) const;

 private:
  Status walk(const Json& schema, std::string path, std::string base, int depth);
  Status walk_children(const Json& schema, const std::string& path, const std::string& base,
                       int depth);

  Json root_;
  bool draft7_ = false;
  struct Place {
    std::string path, base;
  };
  std::unordered_map<const Json*, Place> places_;
  std::unordered_map<std::string, const Json*> resources_;  // "" and absolute URIs, with anchors
  std::deque<Json> kept_;
  std::vector<const Json*> links_;
};

// `text` or something like "3 digits, then a dot"; for messages: at most 60 bytes of it.
std::string shortened(std::string_view text);

}  // namespace bulkhead::constrain
