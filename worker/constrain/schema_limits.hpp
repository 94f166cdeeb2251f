// The simple constraints of a schema on one string, number, array or object. If several schemas hold for the value,
// their constraints are combined.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "worker/constrain/grammar.hpp"
#include "worker/constrain/number.hpp"
#include "worker/constrain/schema_document.hpp"

namespace bulkhead::constrain {

// The types that a value may have.
struct Types {
  bool null = true, boolean = true, string = true, array = true, object = true;
  bool integer = true, fraction = true;  // numbers that are integers, and numbers that are not
  bool none() const {
    return !null && !boolean && !string && !array && !object && !integer && !fraction;
  }
  bool all() const { return null && boolean && string && array && object && integer && fraction; }
  void meet(const Types& other);
  // Returns the types that "type" names. kInvalidArgument if a name is no type.
  static Result<Types> of(const Json& names);
  static Types only_object();
};

// What to do about a keyword that can't be enforced.
class Complaints {
 public:
  enum class Mode {
    kStrict,   // refuse
    kLenient,  // leave it out and note it
    kQuiet,    // leave it out; used where an answer that is too wide is right, too
  };
  explicit Complaints(Mode mode) : mode_(mode) {}

  // Returns an error in strict mode.
  Status unsupported(const std::string& keyword, const std::string& path, const std::string& why);
  Mode mode() const { return mode_; }
  void set_mode(Mode mode) { mode_ = mode; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Mode mode_;
  std::vector<std::string> warnings_;
  std::set<std::string> told_;
};

// Returns a count such as minLength; large counts saturate. kInvalidArgument names the keyword.
Result<std::uint32_t> count_of(const Json& value, const char* keyword);

// Returns the shape of all texts that the string keywords of these schemas allow. An empty contents automaton allows
// none.
Result<StringShape> string_shape(const std::vector<const Json*>& schemas,
                                 const SchemaDocument& document, Complaints& complaints);
// Returns the shape, with `lengths` if they are needed.
Result<StringShape> with_lengths(DfaPtr contents, std::uint32_t min, std::uint32_t max);
// Returns the range of all numbers that these schemas allow. `integer` and `fraction` say which numbers the types
// allow.
Result<NumberRange> number_range(const std::vector<const Json*>& schemas, bool integer,
                                 bool fraction, const SchemaDocument& document,
                                 Complaints& complaints);

}  // namespace bulkhead::constrain
