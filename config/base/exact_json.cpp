#include "config/base/exact_json.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace bulkhead {
namespace {

using Ordered = nlohmann::ordered_json;

// Builds a value as nlohmann's own handler does, except for integers that it would round.
class Builder final : public nlohmann::json_sax<Ordered> {
 public:
  explicit Builder(Ordered& root) : root_(root) {}

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(std::int64_t value) override { return add(value) != nullptr; }
  bool number_unsigned(std::uint64_t value) override { return add(value) != nullptr; }
  bool number_float(double value, const std::string& text) override {
    if (!is_rounded_integer(text)) return add(value) != nullptr;
    return add(Ordered::binary(Ordered::binary_t::container_type(text.begin(), text.end()))) !=
           nullptr;
  }
  bool string(std::string& value) override { return add(std::move(value)) != nullptr; }
  bool binary(Ordered::binary_t&) override { return false; }  // JSON has none
  bool start_object(std::size_t) override { return open(Ordered::object()); }
  bool start_array(std::size_t) override { return open(Ordered::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    member_ = &member_named(name, open_.back());  // of equal names the last one counts
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Ordered::exception&) override {
    return false;
  }

 private:
  // An array or an object that has not ended.
  struct Open {
    Ordered* value;
    std::unordered_map<std::string, std::size_t> places;  // of the members, once there are many
  };

  // An ordered object compares a name with each of its members, so many members need places.
  static Ordered& member_named(const std::string& name, Open& object) {
    constexpr std::size_t kFewMembers = 32;
    auto& members = object.value->get_ref<Ordered::object_t&>();
    if (members.size() < kFewMembers) return members[name];
    if (object.places.empty()) {
      for (const auto& member : members)
        object.places.emplace(member.first, object.places.size());
    }
    const auto [place, added] = object.places.try_emplace(name, members.size());
    if (added) members.emplace_back(name, Ordered());
    return members.data()[place->second].second;
  }

  Ordered* add(Ordered value) {
    if (open_.empty()) return &(root_ = std::move(value));
    Ordered& last = *open_.back().value;
    if (last.is_object()) return &(*member_ = std::move(value));
    return &last.emplace_back(std::move(value));
  }
  bool open(Ordered empty) {
    Ordered* const value = add(std::move(empty));
    open_.push_back({value, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Ordered& root_;
  // The arrays and objects that have not ended, the outermost one first. New values go only into the last one, so the
  // pointers to the others stay valid.
  std::vector<Open> open_;
  Ordered* member_ = nullptr;  // the value of the latest key
};

bool has_digits(const Ordered& value) {
  return value.is_binary() ||
         (value.is_structured() && std::any_of(value.begin(), value.end(), has_digits));
}

void write(const Ordered& value, std::string& out) {
  if (value.is_binary()) {
    out += digits_of(value);
  } else if (value.is_object()) {
    char before = '{';
    for (const auto& [name, member] : value.items()) {
      out += std::exchange(before, ',') + Ordered(name).dump() + ':';
      write(member, out);
    }
    out += value.empty() ? "{}" : "}";
  } else if (value.is_array()) {
    char before = '[';
    for (const Ordered& item : value) {
      out += std::exchange(before, ',');
      write(item, out);
    }
    out += value.empty() ? "[]" : "]";
  } else {
    out += value.dump();
  }
}

}  // namespace

bool is_rounded_integer(std::string_view number) {
  if (number.size() < 19 || number.find_first_of(".eE") != number.npos) return false;
  const char* const end = number.data() + number.size();
  std::int64_t with_sign = 0;
  std::uint64_t without = 0;
  if (std::from_chars(number.data(), end, with_sign).ec == std::errc() ||
      std::from_chars(number.data(), end, without).ec == std::errc())
    return false;
  double value = 0;
  std::array<char, 400> exact;
  if (std::from_chars(number.data(), end, value).ec != std::errc()) return true;
  const auto made = std::to_chars(exact.begin(), exact.end(), value, std::chars_format::fixed, 0);
  return number != std::string_view(exact.begin(), made.ptr);
}

nlohmann::ordered_json parse_exact(std::string_view text) {
  Ordered value;
  Builder builder(value);
  if (!Ordered::sax_parse(text, &builder)) return Ordered(Ordered::value_t::discarded);
  return value;
}

std::string dump_exact(const nlohmann::ordered_json& value) {
  if (!has_digits(value)) return value.dump();  // faster
  std::string out;
  write(value, out);
  return out;
}

std::string_view digits_of(const nlohmann::ordered_json& value) {
  if (!value.is_binary()) return {};
  const auto& bytes = value.get_binary();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace bulkhead
