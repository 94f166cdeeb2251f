// A JSON schema as it was given: where its subschemas are, what `$ref` refers to, and the schemas that the compiler
// makes on the way (for `not`). One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "config/base/error.hpp"

namespace bulkhead::constrain {

using Json = nlohmann::ordered_json;  // properties keep their order

// A keyword of our own, which no user's JSON can contain: {kLink: n} refers to the n-th linked schema.
inline constexpr const char* kLink = "\x01link";
inline constexpr const char* kNotEnum = "\x01not-enum";
inline constexpr const char* kNotPattern = "\x01not-pattern";
inline constexpr const char* kNotFormat = "\x01not-format";
inline constexpr const char* kNotMultiple = "\x01not-multiple";
inline constexpr const char* kNotInteger = "\x01not-integer";
// true in a schema that says what another one must not: the members that it names are not evaluated by it.
inline constexpr const char* kOpposite = "\x01opposite";

class Complaints;  // schema_limits.hpp
struct Dfa;
struct StringShape;

class SchemaDocument {
 public:
  // kInvalidArgument if it is no schema; kResourceExhausted beyond the limits of size and depth. Complains about
  // keywords with integers that a double would round; if they are left out, the document does not have them.
  static Result<std::unique_ptr<SchemaDocument>> read(std::string_view text,
                                                      Complaints& complaints);

  const Json* root() const { return &root_; }
  bool draft7() const { return draft7_; }

  // Returns the schema to which `reference`, in schema `at`, refers. kUnsupported if it lies in another document.
  Result<const Json*> resolve(const Json* at, const std::string& reference) const;
  // Returns a path such as "#/properties/a" for messages; "#" if it is unknown.
  std::string path(const Json* schema) const;

  // Keeps a schema that the compiler made, as long as the document lives. `of`: the schema of which it is a part;
  // messages name that one's place.
  const Json* keep(Json schema, const Json* of = nullptr);
  // link() makes {kLink: n}. The next function returns the schema to which such a one refers, or nullptr for any
  // other.
  Json link(const Json* schema);
  const Json* linked(const Json& schema) const;

  // What checking constants against the document's schemas has cost so far, and what it has made of their keywords.
  struct Checks {
    // The last member is true if what can't be enforced was left out silently.
    using Keyword = std::tuple<const Json*, std::string, bool>;
    template <typename Made>
    using ByKeyword = std::map<Keyword, std::shared_ptr<const Made>>;
    std::uint64_t work = 0;
    ByKeyword<StringShape> texts;
    ByKeyword<Dfa> numbers;
    std::map<std::string, std::shared_ptr<const Dfa>>
        names;  // by the patterns of patternProperties
  };
  Checks& checks() { return checks_; }

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
  std::unordered_map<std::string, const Json*>
      resources_;  // by "" and by absolute URI, with anchors
  std::deque<Json> kept_;
  std::vector<const Json*> links_;
  Checks checks_;
};

// For messages: returns at most 60 bytes of `text`.
std::string shortened(std::string_view text);

}  // namespace bulkhead::constrain
