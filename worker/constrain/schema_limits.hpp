// The simple constraints of a schema on one value, gathered from all schemas that hold for it: for
// strings, numbers, arrays and objects. What several say is what all say together.
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
  bool integer = true, fraction = true;  // numbers that are integers, numbers that aren't
  bool none() const {
    return !null && !boolean && !string && !array && !object && !integer && !fraction;
  }
  void meet(const Types& other);
  // The types that "type" names. kInvalidArgument for what is no type.
  static Result<Types> of(const Json& names);
  static Types only_object();
};

// What is done about a keyword that can't be held.
class Complaints {
 public:
  enum class Mode {
    kStrict,   // refuse
    kLenient,  // leave it out and note it
    kQuiet,    // leave it out: where too wide an answer is right, too
  };
  explicit Complaints(Mode mode) : mode_(mode) {}

  // An error in strict mode.
  Status unsupported(const std::string& keyword, const std::string& path, const std::string& why);
  Mode mode() const { return mode_; }
  void set_mode(Mode mode) { mode_ = mode; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Mode mode_;
  std::vector<std::string> warnings_;
  std::set<std::string> told_;
};

// A count such as minLength; large ones saturate. kInvalidArgument naming the keyword.
Result<std::uint32_t> count_of(const Json& value, const char* keyword);

// All texts that the string keywords of these schemas allow. An empty contents automaton: none.
Result<StringShape> string_shape(const std::vector<const Json*>& schemas,
                                 const SchemaDocument& document, Complaints& complaints);
// The shape with `lengths` where they are needed.
Result<StringShape> with_lengths(DfaPtr contents, std::uint32_t min, std::uint32_t max);
// All numbers. `integer`, `fraction`: which of them the types allow.
Result<NumberRange> number_range(const std::vector<const Json*>& schemas, bool integer,
                                 bool fraction, const SchemaDocument& document,
                                 Complaints& complaints);

}  // namespace bulkhead::constrain
