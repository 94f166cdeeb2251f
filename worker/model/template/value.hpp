// The values that a template computes with: Python's, as far as templates use them.
//
// Text is reference-counted. Containers live on the Heap of their rendering and are all freed with it, so that
// neither a cycle nor deep nesting can leak or overflow the stack. A pointer in a Value is never null.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "worker/model/template/memory.hpp"
#include "worker/model/template/text.hpp"

namespace bulkhead::jinja {

struct Expr;  // syntax.hpp
struct Object;
struct BigInteger;
struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

// The result of a missing name, key or attribute. It is false, prints nothing and has no items; any other use of it
// fails, with a message that says where it came from.
struct Undefined {
  const Expr* origin = nullptr;
  bool forbidden = false;  // an attribute that transformers' sandbox refuses
};
struct None {};

// In the order of Value's alternatives.
enum class Kind : std::uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kBigInt,
  kList,  // lists, tuples, and everything else that is a sequence of items
  kDict,
  kNamespace,
  kCallable,
  kLoop,
};

class Value {
 public:
  Value() = default;
  Value(Undefined undefined) : data_(undefined) {}  // NOLINT: implicit
  Value(None none) : data_(none) {}                 // NOLINT: implicit
  Value(bool value) : data_(value) {}               // NOLINT: implicit
  Value(std::int64_t value) : data_(value) {}       // NOLINT: implicit
  Value(double value) : data_(value) {}             // NOLINT: implicit
  Value(Text text) : data_(std::move(text)) {}      // NOLINT: implicit
  Value(BigInteger* value) : data_(value) {}        // NOLINT: implicit
  Value(List* list) : data_(list) {}                // NOLINT: implicit
  Value(Dict* dict) : data_(dict) {}                // NOLINT: implicit
  Value(Namespace* space) : data_(space) {}         // NOLINT: implicit
  Value(Callable* callable) : data_(callable) {}    // NOLINT: implicit
  Value(Loop* loop) : data_(loop) {}                // NOLINT: implicit
  Value(const char*) = delete;                      // would become a bool

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool undefined() const { return kind() == Kind::kUndefined; }
  bool none() const { return kind() == Kind::kNone; }

  // Return null, or nothing, if the value is of another kind.
  const Undefined* as_undefined() const { return std::get_if<Undefined>(&data_); }
  const bool* as_bool() const { return std::get_if<bool>(&data_); }
  const std::int64_t* as_int() const { return std::get_if<std::int64_t>(&data_); }
  const double* as_float() const { return std::get_if<double>(&data_); }
  const Text* as_text() const { return std::get_if<Text>(&data_); }
  BigInteger* as_big() const { return pointer<BigInteger>(); }
  List* as_list() const { return pointer<List>(); }
  Dict* as_dict() const { return pointer<Dict>(); }
  Namespace* as_namespace() const { return pointer<Namespace>(); }
  Callable* as_callable() const { return pointer<Callable>(); }
  Loop* as_loop() const { return pointer<Loop>(); }

 private:
  template <typename T>
  T* pointer() const {
    T* const* at = std::get_if<T*>(&data_);
    return at == nullptr ? nullptr : *at;
  }

  std::variant<Undefined, None, bool, std::int64_t, double, Text, BigInteger*, List*, Dict*,
               Namespace*, Callable*, Loop*>
      data_;
};

struct Object {
  virtual ~Object() = default;
};

enum class Flavour : std::uint8_t {
  kList,
  kTuple,
  kRange,      // a Range
  kView,       // dict.items(), keys(), values(): has a length and no subscripts
  kGenerator,  // the result of select, map and others: gives its items once, has no length, is always true
};

struct List : Object {
  Flavour flavour = Flavour::kList;
  const char* view_name = "dict_values";  // of a kView
  bool is_group = false;                  // from groupby: its two items are also .grouper and .list
  CountedVector<Value> items;
};

// range(): its items, and the bounds that it prints.
struct Range : List {
  Range() { flavour = Flavour::kRange; }
  std::int64_t start = 0;
  std::int64_t stop = 0;
  std::int64_t step = 1;
};

// Keeps the order of insertion, as Python's does.
struct Dict : Object {
  struct Entry {
    Value key;
    Value value;
  };
  CountedVector<Entry> entries;

  // Returns null if the key is missing. `fail`s for a key that can't be hashed.
  Value* find(const Value& key);
  Value* get(std::string_view key);
  void set(const Value& key, Value value);
  std::optional<Value> erase(const Value& key);
  void clear();

 private:
  std::size_t position(const Value& key, std::size_t hash) const;
  void index_last();
  void rebuild_index();
  static constexpr std::size_t kIndexFrom = 9;  // with fewer entries, find() goes through all of them
  CountedVector<std::uint32_t> slots_;          // open addressing; entry + 1, 0: free
};

// namespace(): the only thing that carries values out of a loop.
struct Namespace : Object {
  Dict attributes;
};

// Python's equality: 1 == 1.0 == True, lists item by item. `depth` guards against cycles: beyond kMaxNesting it
// fails.
bool equal(const Value& a, const Value& b, int depth = 0);
// Fails for lists, dicts and the like.
std::size_t hash_of(const Value& key, int depth = 0);
constexpr int kMaxNesting = 200;

// Owns the containers of one rendering.
class Heap {
 public:
  Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  ~Heap();

  template <typename T>
  T* make() {
    objects_.reserve(objects_.size() + 1 > objects_.capacity() ? 2 * objects_.size() + 16
                                                               : objects_.capacity());
    charge(sizeof(T));
    auto* object = new T();
    objects_.push_back(object);
    return object;
  }
  List* list(Flavour flavour = Flavour::kList) {
    List* made = make<List>();
    made->flavour = flavour;
    return made;
  }
  // Counts memory that an object takes beyond itself, until the heap is freed.
  void charge(std::size_t bytes) {
    charge_memory(bytes);
    charged_ += bytes;
  }

 private:
  CountedVector<Object*> objects_;
  std::size_t charged_ = 0;
};

}  // namespace bulkhead::jinja
