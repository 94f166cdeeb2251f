#include <vector>

#include <nlohmann/json.hpp>

#include "worker/model/template/big_integer.hpp"
#include "worker/model/template/json.hpp"
#include "worker/model/template/python.hpp"

namespace bulkhead::jinja {
namespace {

// nlohmann's reader calls these functions. nlohmann's own values would lose the order of keys, and large integers.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  Reader(Run& run, Origin origin) : run_(run), origin_(origin) {}

  Value take() { return std::move(root_); }
  const std::string& error() const { return error_; }

  bool null() override { return put(None{}); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(std::int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max()))
      return put(static_cast<std::int64_t>(value));
    return put(make_integer(run_.heap(), Integer(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") != text.npos) return put(value);
    const auto integer = parse_integer(text);
    if (!integer) return refuse("an integer of over 4,300 digits");
    return put(make_integer(run_.heap(), *integer));
  }
  bool string(string_t& text) override { return put(Text(text, origin_)); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool start_object(std::size_t) override { return open(run_.heap().make<Dict>()); }
  bool key(string_t& text) override {
    open_.back().key = Text(text, origin_);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(run_.heap().list()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t at, const std::string&,
                   const nlohmann::detail::exception& e) override {
    // what() begins with the exception's name: "[json.exception.parse_error.101] parse error at line 2, ..."
    const std::string_view words = e.what();
    const std::size_t name = words.find("] ");
    error_ = "at byte " + std::to_string(at) + ": ";
    error_ += name == std::string_view::npos ? words : words.substr(name + 2);
    return false;
  }

 private:
  struct Open {
    Value container;
    Text key;
  };

  bool refuse(const std::string& what) {
    error_ = "it has " + what;
    return false;
  }
  bool put(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (List* list = open_.back().container.as_list()) {
      list->items.push_back(std::move(value));
    } else {
      open_.back().container.as_dict()->set(open_.back().key, std::move(value));
    }
    return true;
  }
  bool open(Value container) {
    if (open_.size() >= kMaxJsonDepth)
      return refuse("lists and objects nested over " + std::to_string(kMaxJsonDepth) + " deep");
    put(container);
    open_.push_back({std::move(container), {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Run& run_;
  Origin origin_;
  Value root_ = None{};
  std::vector<Open> open_;
  std::string error_;
};

}  // namespace

Value read_json(Run& run, std::string_view json, Origin origin) {
  run.tick(scan_steps(json.size()));
  Reader reader(run, origin);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader))
    fail(std::string(kNoJson) + reader.error());
  return reader.take();
}

}  // namespace bulkhead::jinja
