// A JSON schema as it was given: where its subschemas are, what `$ref` refers to, and the schemas that the compiler
// makes on the way (for `not`). One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
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
  // Returns a path such as "#/properties/a" for messages; long names in it are shortened. Of a schema that the compiler
  // made, or of its parts: the path of the schema that it was made of.
  std::string path(const Json* schema) const;
  // Returns the path of the first of the schemas that has the keyword; of the first one if none has it.
  std::string path(const std::vector<const Json*>& schemas, std::string_view keyword) const;

  // Keeps a schema that the compiler made of the schema `of`, as long as the document lives.
  const Json* keep(Json schema, const Json* of);
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
  // Where a schema stands. A document of many schemas may have long names and URIs, so a place has only its own step.
  struct Place {
    const Json* outer = nullptr;  // the schema around it; null for the root
    std::string step;             // from there: "/properties/a"
    std::size_t base = 0;         // the URI against which its references are resolved, in bases_
  };
  Status walk(const Json& schema, Place place);
  Status walk_children(const Json& schema, std::size_t base);
  Result<std::size_t> names_of(const Json& schema, std::size_t base);
  const Place* place(const Json* schema) const;
  void note_parts(const Json& made, const Json* of);

  Json root_;
  bool draft7_ = false;
  std::unordered_map<const Json*, Place> places_;
  std::unordered_map<const Json*, const Json*>
      made_of_;  // for schemas that the compiler made, and their parts
  std::deque<std::string> bases_ = {""};
  std::unordered_map<std::string, const Json*>
      resources_;  // by "" and by absolute URI, with anchors
  std::deque<Json> kept_;
  std::vector<const Json*> links_;
  Checks checks_;
};

// For messages: returns at most 60 bytes of `text`.
std::string shortened(std::string_view text);

}  // namespace bulkhead::constrain
