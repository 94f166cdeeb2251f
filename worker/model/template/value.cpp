#include "worker/model/template/value.hpp"

#include <cmath>
#include <functional>

#include "worker/model/template/big_integer.hpp"
#include "worker/model/template/python.hpp"
#include "worker/model/template/run.hpp"
#include "worker/model/template/template_error.hpp"

namespace bulkhead::jinja {
namespace {

constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

void check_nesting(int depth) {
  if (depth > kMaxNesting)
    throw TemplateError(TemplateError::Kind::kLimit,
                        "nests lists or dicts more than " + std::to_string(kMaxNesting) +
                            " deep; mend the template, which makes them");
}

bool equal_texts(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  Run::tick_of_thread(copy_steps(a.size()));
  return a == b;
}

bool equal_items(const List& a, const List& b, int depth) {
  if (&a == &b) return true;
  const bool same_flavour = a.flavour == b.flavour;
  if (!same_flavour || a.flavour == Flavour::kGenerator || a.items.size() != b.items.size())
    return false;
  for (std::size_t i = 0; i < a.items.size(); ++i)
    if (!equal(a.items[i], b.items[i], depth + 1)) return false;
  return true;
}

bool equal_entries(Dict& a, Dict& b, int depth) {
  if (&a == &b) return true;
  if (a.entries.size() != b.entries.size()) return false;
  for (const Dict::Entry& entry : a.entries) {
    const Value* other = b.find(entry.key);
    if (other == nullptr || !equal(entry.value, *other, depth + 1)) return false;
  }
  return true;
}

std::size_t hash_text(std::string_view text) {
  Run::tick_of_thread(scan_steps(text.size()));
  return std::hash<std::string_view>()(text);
}

}  // namespace

bool equal(const Value& a, const Value& b, int depth) {
  check_nesting(depth);
  Run::tick_lightly_of_thread();
  if (is_number(a) && is_number(b)) return compare_numbers(a, b) == Ordering::kEqual;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kText:
      return equal_texts(a.as_text()->view(), b.as_text()->view());
    case Kind::kList:
      return equal_items(*a.as_list(), *b.as_list(), depth);
    case Kind::kDict:
      return equal_entries(*a.as_dict(), *b.as_dict(), depth);
    case Kind::kNamespace:
      return a.as_namespace() == b.as_namespace();
    case Kind::kCallable:
      return a.as_callable() == b.as_callable();
    case Kind::kLoop:
      return a.as_loop() == b.as_loop();
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kBigInt:
      break;  // numbers were handled above
  }
  return false;
}

std::size_t hash_of(const Value& key, int depth) {
  check_nesting(depth);
  Run::tick_lightly_of_thread();
  switch (key.kind()) {
    case Kind::kText:
      return hash_text(key.as_text()->view());
    case Kind::kUndefined:
      return 1;
    case Kind::kNone:
      return 2;
    case Kind::kBool:
      return std::hash<double>()(*key.as_bool() ? 1.0 : 0.0);
    case Kind::kInt:
      return std::hash<double>()(static_cast<double>(*key.as_int()));
    case Kind::kFloat:
      return std::hash<double>()(*key.as_float());
    case Kind::kBigInt:
      return std::hash<double>()(key.as_big()->value.convert_to<double>());
    case Kind::kList: {
      if (key.as_list()->flavour != Flavour::kTuple) break;
      std::size_t hash = 3;
      for (const Value& item : key.as_list()->items)
        hash = hash * 1000003 + hash_of(item, depth + 1);
      return hash;
    }
    case Kind::kNamespace:
      return std::hash<const void*>()(key.as_namespace());
    case Kind::kCallable:
      return std::hash<const void*>()(key.as_callable());
    case Kind::kLoop:
      return std::hash<const void*>()(key.as_loop());
    case Kind::kDict:
      break;
  }
  fail("uses " + a_type(key) + " as the key of a dict, and it can't be one");
}

std::size_t Dict::position(const Value& key, std::size_t hash) const {
  if (slots_.empty()) {
    for (std::size_t i = 0; i < entries.size(); ++i)
      if (equal(entries[i].key, key)) return i;
    return kNowhere;
  }
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask; slots_[at] != 0; at = (at + 1) & mask)
    if (equal(entries[slots_[at] - 1].key, key)) return slots_[at] - 1;
  return kNowhere;
}

Value* Dict::find(const Value& key) {
  const std::size_t at = position(key, hash_of(key));
  return at == kNowhere ? nullptr : &entries[at].value;
}

Value* Dict::get(std::string_view key) {
  const auto matches = [key](const Entry& entry) {
    const Text* text = entry.key.as_text();
    return text != nullptr && text->view() == key;
  };
  if (slots_.empty()) {
    Run::tick_of_thread(copy_steps(entries.size() * key.size()));
    for (Entry& entry : entries)
      if (matches(entry)) return &entry.value;
    return nullptr;
  }
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash_text(key) & mask; slots_[at] != 0; at = (at + 1) & mask)
    if (matches(entries[slots_[at] - 1])) return &entries[slots_[at] - 1].value;
  return nullptr;
}

void Dict::set(const Value& key, Value value) {
  const std::size_t at = position(key, hash_of(key));
  if (at != kNowhere) {
    entries[at].value = std::move(value);
    return;
  }
  entries.push_back({key, std::move(value)});
  index_last();
}

std::optional<Value> Dict::erase(const Value& key) {
  const std::size_t at = position(key, hash_of(key));
  if (at == kNowhere) return std::nullopt;
  std::optional<Value> value(std::move(entries[at].value));
  entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(at));
  rebuild_index();
  return value;
}

void Dict::clear() {
  entries.clear();
  slots_.clear();
}

void Dict::index_last() {
  if (entries.size() < kIndexFrom) return;
  if (slots_.size() < 2 * entries.size()) {
    rebuild_index();
    return;
  }
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash_of(entries.back().key) & mask;
  while (slots_[at] != 0)
    at = (at + 1) & mask;
  slots_[at] = static_cast<std::uint32_t>(entries.size());
}

void Dict::rebuild_index() {
  slots_.clear();
  if (entries.size() < kIndexFrom) return;
  std::size_t size = 32;
  while (size < 4 * entries.size())
    size *= 2;
  slots_.assign(size, 0);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    std::size_t at = hash_of(entries[i].key) & (size - 1);
    while (slots_[at] != 0)
      at = (at + 1) & (size - 1);
    slots_[at] = static_cast<std::uint32_t>(i + 1);
  }
}

Heap::~Heap() {
  for (Object* object : objects_)
    delete object;
  refund_memory(charged_);
}

Value make_integer(Heap& heap, const Integer& value) {
  if (value >= std::numeric_limits<std::int64_t>::min() &&
      value <= std::numeric_limits<std::int64_t>::max())
    return value.convert_to<std::int64_t>();
  static const Integer kBound = Integer(1) << kMaxIntegerBits;
  static const Integer kLowest = -kBound;
  if (value >= kBound || value <= kLowest)
    throw TemplateError(TemplateError::Kind::kLimit, "computes an integer of over 4,000 digits");
  heap.charge(kMaxIntegerBits / 8);
  auto* big = heap.make<BigInteger>();
  big->value = value;
  return big;
}

}  // namespace bulkhead::jinja
