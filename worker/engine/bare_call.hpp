// JSON without a mark that may be a call. It is a call once its name has ended, and until then the model is free: it
// may write the arguments before the name, other keys, and any blanks. The grammar of calls has one order and few
// blanks, so the text is brought into the grammar's form before the grammar goes on from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "worker/model/answer/family.hpp"
#include "worker/model/answer/json_text.hpp"

namespace bulkhead::engine {

// Follows one object, byte by byte. Copies are cheap: it keeps places and not the text.
class BareCall {
 public:
  explicit BareCall(const model::answer::Calls& calls) : calls_(&calls) {}

  void feed(char byte);
  // The object's name has ended, with the last byte. Takes no more bytes then.
  bool named() const { return at_ == At::kNamed; }
  // Returns the name, once it is named(); empty if its text has an invalid escape.
  std::string name(std::string_view text) const;
  // Returns the call as the grammar has it, up to the name, or up to the arguments if they came before the name.
  // `text` is all that has been fed, and the call must be named().
  std::string in_order(std::string_view text) const;

 private:
  enum class At : std::uint8_t { kOpen, kMember, kKey, kColon, kValueBegin, kValue, kName, kNamed };
  struct Place {
    std::size_t begin = 0, end = 0;
    std::string_view in(std::string_view text) const { return text.substr(begin, end - begin); }
  };

  void begin_value(char byte);
  bool string_ends(char byte);

  const model::answer::Calls* calls_;
  At at_ = At::kOpen;
  std::size_t size_ = 0;  // bytes fed
  bool listed_ = false;   // the object is in a list
  bool inner_ = false;    // the call is the object "function" of the object
  bool escaped_ = false;
  bool long_key_ = false;
  std::string key_;         // a short one; longer ones mean nothing
  Place name_, arguments_;  // with their quotes and brackets; empty arguments: not there yet
  std::string arguments_key_;
  model::answer::JsonEnd value_;
  Place value_place_;
};

}  // namespace bulkhead::engine
