#include "worker/engine/bare_call.hpp"

#include <algorithm>
#include <string>

namespace bulkhead::engine {
namespace {

constexpr std::size_t kLongestKey = 32;

bool is_blank_byte(char byte) {
  return model::answer::kBlanks.find(byte) != std::string_view::npos;
}

// Appends JSON without the blanks outside its strings.
void append_without_blanks(std::string& out, std::string_view value) {
  bool in_string = false, escaped = false;
  for (const char byte : value) {
    if (!in_string && is_blank_byte(byte)) continue;
    out += byte;
    if (byte == '"' && !escaped) in_string = !in_string;
    escaped = in_string && byte == '\\' && !escaped;
  }
}

}  // namespace

// Returns whether the byte is the closing quote.
bool BareCall::string_ends(char byte) {
  const bool ends = byte == '"' && !escaped_;
  escaped_ = byte == '\\' && !escaped_;
  return ends;
}

void BareCall::begin_value(char byte) {
  const model::answer::JsonKeys& keys = calls_->keys;
  if (key_ == keys.name && byte == '"') {
    name_.begin = size_;
    at_ = At::kName;
  } else if (key_ == model::answer::kFunctionKey && byte == '{' && !inner_) {
    inner_ = true;
    at_ = At::kMember;
  } else {
    value_ = {};
    (void)value_.take({&byte, 1});
    value_place_ = {size_, size_};
    at_ = At::kValue;
  }
}

void BareCall::feed(char byte) {
  switch (at_) {
    case At::kOpen:
      listed_ |= byte == '[';
      if (byte == '{') at_ = At::kMember;
      break;
    case At::kMember:
      if (byte != '"') break;
      key_.clear();
      long_key_ = false;
      at_ = At::kKey;
      break;
    case At::kKey:
      if (string_ends(byte)) {
        if (long_key_) key_.clear();
        at_ = At::kColon;
      } else if (key_.size() < kLongestKey) {
        key_ += byte;
      } else {
        long_key_ = true;
      }
      break;
    case At::kColon:
      if (byte == ':') at_ = At::kValueBegin;
      break;
    case At::kValueBegin:
      if (!is_blank_byte(byte)) begin_value(byte);
      break;
    case At::kValue: {
      const bool inside = value_.take({&byte, 1}) == 1;
      if (!value_.done()) break;
      value_place_.end = inside ? size_ + 1 : size_;
      if (std::ranges::count(calls_->keys.arguments, key_) != 0) {
        arguments_ = value_place_;
        arguments_key_ = key_;
      }
      at_ = At::kMember;
      break;
    }
    case At::kName:
      if (!string_ends(byte)) break;
      name_.end = size_ + 1;
      at_ = At::kNamed;
      break;
    case At::kNamed:
      return;
  }
  ++size_;
}

std::string BareCall::name(std::string_view text) const {
  const std::string_view quoted = name_.in(text);
  std::string name;
  return model::answer::unescape(quoted.substr(1, quoted.size() - 2), name) ? name : std::string();
}

std::string BareCall::in_order(std::string_view text) const {
  std::string call = listed_ ? "[{" : "{";
  if (inner_) call += model::answer::json_quoted(model::answer::kFunctionKey) + ": {";
  call += model::answer::json_quoted(calls_->keys.name) + ": ";
  call += name_.in(text);
  if (arguments_.end == 0) return call;
  call += ", " + model::answer::json_quoted(arguments_key_) + ": ";
  append_without_blanks(call, arguments_.in(text));
  return call;
}

}  // namespace bulkhead::engine
