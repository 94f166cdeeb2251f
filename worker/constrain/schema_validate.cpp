// Validates constants. Each keyword is one row of a table.
#include "worker/constrain/schema_validate.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "worker/constrain/formats.hpp"
#include "worker/constrain/regex.hpp"

namespace bulkhead::constrain {

bool equal_json(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a == b;
  if (a.type() != b.type() || a.size() != b.size()) return false;
  if (a.is_array()) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!equal_json(a[i], b[i])) return false;
    }
    return true;
  }
  if (a.is_object()) {
    for (const auto& [key, value] : a.items()) {
      const auto other = b.find(key);
      if (other == b.end() || !equal_json(value, *other)) return false;
    }
    return true;
  }
  return a == b;
}

namespace {

constexpr int kMostValueDepth = 64;
// The bound on the work of checking a document's constants. A hostile schema can multiply this work.
constexpr std::uint64_t kMostCheckWork = 10'000'000;
constexpr std::uint64_t kWorkPerSchema = 10;  // with all that it refers to
constexpr std::size_t kMembersPerWork = 100;  // of a list that is searched

class Validator {
 public:
  Validator(const Json& instance, const Json* schema, SchemaDocument& document,
            Complaints& complaints, int depth)
      : it_(instance),
        schema_(schema),
        document_(document),
        complaints_(complaints),
        depth_(depth) {}

  Result<bool> run_alone() {
    static const std::set<std::string> applied = {"$ref",
                                                  "allOf",
                                                  "anyOf",
                                                  "oneOf",
                                                  "not",
                                                  "if",
                                                  "dependencies",
                                                  "dependentRequired",
                                                  "dependentSchemas"};
    if (document_.linked(*schema_) != nullptr) return true;
    BULKHEAD_RETURN_IF_ERROR(spend(1));
    for (const auto& [key, value] : schema_->items()) {
      if (applied.contains(key)) continue;
      BULKHEAD_TRY(const bool ok, keyword(key, value));
      if (!ok) return false;
    }
    return true;
  }

  Result<bool> run() {
    if (schema_->is_boolean()) return schema_->get<bool>();
    BULKHEAD_RETURN_IF_ERROR(spend(kWorkPerSchema));
    if (depth_ > kMostValueDepth) {
      BULKHEAD_RETURN_IF_ERROR(complain("$ref", "it leads to itself"));
      return true;
    }
    if (const Json* linked = document_.linked(*schema_)) return valid(it_, *linked);
    if (document_.draft7() && schema_->contains("$ref")) return keyword("$ref", (*schema_)["$ref"]);
    for (const auto& [key, value] : schema_->items()) {
      BULKHEAD_TRY(const bool ok, keyword(key, value));
      if (!ok) return false;
    }
    return true;
  }

 private:
  Status spend(std::uint64_t work) {
    document_.checks().work += work;
    if (document_.checks().work <= kMostCheckWork) return {};
    return Error(ErrorCode::kResourceExhausted,
                 "\"enum\" or \"const\" beside " + document_.path(schema_) +
                     ": checking it against the rest of the schema takes too long");
  }
  Status complain(const std::string& key, const std::string& why) {
    return complaints_.unsupported(key, document_.path(schema_), why);
  }
  Result<bool> valid(const Json& instance, const Json& schema) {
    return validates(instance, &schema, document_, complaints_, depth_ + 1);
  }

  Result<bool> keyword(const std::string& key, const Json& value) {
    if (key == "type") return type(value);
    if (key == kNotInteger) return !is_integer();
    if (key == "const") return equal_json(it_, value);
    if (key == "enum" || key == kNotEnum) {
      BULKHEAD_TRY(const bool listed, lists(value));
      return listed == (key == "enum");
    }
    if (key == "$ref") {
      if (!value.is_string())
        return Error(ErrorCode::kInvalidArgument, "\"$ref\" must be a string");
      BULKHEAD_TRY(const Json* target, document_.resolve(schema_, value.get<std::string>()));
      return valid(it_, *target);
    }
    if (key == "allOf" || key == "anyOf" || key == "oneOf") return branches(key, value);
    if (key == "not") {
      BULKHEAD_TRY(const bool ok, valid(it_, value));
      return !ok;
    }
    if (key == "if") {
      BULKHEAD_TRY(const bool ok, valid(it_, value));
      const auto then = schema_->find(ok ? "then" : "else");
      return then == schema_->end() ? Result<bool>(true) : valid(it_, *then);
    }
    if (it_.is_number()) return number(key);
    if (it_.is_string()) return text(key);
    if (it_.is_array()) return array(key, value);
    if (it_.is_object()) return object(key, value);
    return true;
  }

  // Returns whether the list has the instance. An enum's own members are validated, too; a search for each of them
  // would take the square of their number.
  Result<bool> lists(const Json& values) {
    if (!values.is_array()) return false;
    const auto& members = values.get_ref<const Json::array_t&>();
    const std::less<const Json*> before;
    const Json* const begin = members.data();
    if (!before(&it_, begin) && before(&it_, begin + members.size())) return true;
    BULKHEAD_RETURN_IF_ERROR(spend(members.size() / kMembersPerWork));
    return std::any_of(members.begin(), members.end(),
                       [this](const Json& member) { return equal_json(it_, member); });
  }

  Result<bool> type(const Json& value) {
    BULKHEAD_TRY(const Types types, Types::of(value));
    if (it_.is_null()) return types.null;
    if (it_.is_boolean()) return types.boolean;
    if (it_.is_string()) return types.string;
    if (it_.is_array()) return types.array;
    if (it_.is_object()) return types.object;
    return is_integer() ? types.integer : types.fraction;
  }

  bool is_integer() const {
    if (!it_.is_number()) return false;
    return !it_.is_number_float() || it_.get<double>() == std::floor(it_.get<double>());
  }

  Result<bool> branches(const std::string& key, const Json& value) {
    std::size_t fits = 0;
    for (const Json& branch : value) {
      BULKHEAD_TRY(const bool ok, valid(it_, branch));
      fits += ok ? 1 : 0;
    }
    if (key == "allOf") return fits == value.size();
    return key == "anyOf" ? fits > 0 : fits == 1;
  }

  // The quiet mode leaves out what it can't enforce, so its automata differ from those of the other modes.
  SchemaDocument::Checks::Keyword here(const std::string& key) const {
    return {schema_, key, complaints_.mode() == Complaints::Mode::kQuiet};
  }

  // Checks one keyword alone, with the automaton that generation would use.
  Result<bool> number(const std::string& key) {
    static const std::set<std::string> keys = {"minimum",          "maximum",    "exclusiveMinimum",
                                               "exclusiveMaximum", "multipleOf", kNotMultiple};
    if (!keys.contains(key)) return true;
    std::shared_ptr<const Dfa>& known = document_.checks().numbers[here(key)];
    if (known == nullptr) {
      const Json* only = document_.keep(Json{{key, (*schema_)[key]}}, schema_);
      BULKHEAD_TRY(const NumberRange range,
                   number_range({only}, true, true, document_, complaints_));
      BULKHEAD_TRY(known, number_automaton(range));
    }
    BULKHEAD_TRY(const Decimal value, Decimal::of(it_));
    std::string spelled = (value.negative ? "-" : "") + value.whole;
    if (!value.fraction.empty()) spelled += "." + value.fraction;
    return known->matches(std::u32string(spelled.begin(), spelled.end()));
  }

  Result<bool> text(const std::string& key) {
    static const std::set<std::string> keys = {"minLength", "maxLength", "pattern",
                                               "format",    kNotPattern, kNotFormat};
    if (!keys.contains(key)) return true;
    std::shared_ptr<const StringShape>& known = document_.checks().texts[here(key)];
    if (known == nullptr) {
      const Json* only = document_.keep(Json{{key, (*schema_)[key]}}, schema_);
      BULKHEAD_TRY(StringShape made, string_shape({only}, document_, complaints_));
      known = std::make_shared<const StringShape>(std::move(made));
    }
    std::u32string codes;
    if (!decode_utf8(it_.get<std::string>(), codes)) return false;
    return codes.size() >= known->min && codes.size() <= known->max &&
           known->contents->matches(codes);
  }

  Result<bool> array(const std::string& key, const Json& value) {
    if (key == "minItems" || key == "maxItems") {
      BULKHEAD_TRY(const std::uint32_t bound, count_of(value, key.c_str()));
      return key == "minItems" ? it_.size() >= bound : it_.size() <= bound;
    }
    if (key == "uniqueItems" && value == true) {
      for (std::size_t i = 0; i < it_.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
          if (equal_json(it_[i], it_[j])) return false;
        }
      }
      return true;
    }
    if (key == "contains") {
      std::size_t found = 0;
      for (const Json& item : it_) {
        BULKHEAD_TRY(const bool ok, valid(item, value));
        found += ok ? 1 : 0;
      }
      const auto bound = [&](const char* name, std::size_t absent) -> Result<std::size_t> {
        const auto given = schema_->find(name);
        if (given == schema_->end()) return absent;
        BULKHEAD_TRY(const std::uint32_t count, count_of(*given, name));
        return std::size_t{count};
      };
      BULKHEAD_TRY(const std::size_t least, bound("minContains", 1));
      BULKHEAD_TRY(const std::size_t most, bound("maxContains", found));
      return found >= least && found <= most;
    }
    const auto tuple = schema_->find("prefixItems");
    const bool old_tuple = schema_->contains("items") && (*schema_)["items"].is_array();
    const std::size_t fixed = tuple != schema_->end() ? tuple->size()
                              : old_tuple             ? (*schema_)["items"].size()
                                                      : 0;
    if (key == "prefixItems" && !value.is_array()) {
      return Error(ErrorCode::kInvalidArgument, "\"prefixItems\" must be a list of schemas");
    }
    const bool is_tuple = key == "prefixItems" || (key == "items" && value.is_array());
    if (is_tuple) {
      for (std::size_t i = 0; i < std::min(it_.size(), value.size()); ++i) {
        BULKHEAD_TRY(const bool ok, valid(it_[i], value[i]));
        if (!ok) return false;
      }
      return true;
    }
    if (key == "items" || (key == "additionalItems" && old_tuple)) {
      for (std::size_t i = fixed; i < it_.size(); ++i) {
        BULKHEAD_TRY(const bool ok, valid(it_[i], value));
        if (!ok) return false;
      }
    }
    return true;
  }

  Result<bool> object(const std::string& key, const Json& value) {
    if (key == "minProperties" || key == "maxProperties") {
      BULKHEAD_TRY(const std::uint32_t bound, count_of(value, key.c_str()));
      return key == "minProperties" ? it_.size() >= bound : it_.size() <= bound;
    }
    if (key == "required") return has(value);
    if (key == "dependentRequired" || key == "dependentSchemas" || key == "dependencies") {
      for (const auto& [name, wanted] : value.items()) {
        if (!it_.contains(name)) continue;
        BULKHEAD_TRY(const bool ok,
                     wanted.is_array() ? Result<bool>(has(wanted)) : valid(it_, wanted));
        if (!ok) return false;
      }
      return true;
    }
    const bool members = key == "properties" || key == "patternProperties" ||
                         key == "additionalProperties" || key == "propertyNames";
    if (!members) {
      if (key == "unevaluatedProperties") {
        BULKHEAD_RETURN_IF_ERROR(complain(key, "a constant object can't be held against it"));
      }
      return true;
    }
    for (const auto& [name, member] : it_.items()) {
      BULKHEAD_TRY(const bool ok, property(key, value, name, member));
      if (!ok) return false;
    }
    return true;
  }

  bool has(const Json& names) const {
    return std::all_of(names.begin(), names.end(), [this](const Json& name) {
      return !name.is_string() || it_.contains(name.get_ref<const std::string&>());
    });
  }

  // Says which names a pattern of patternProperties matches.
  Result<std::shared_ptr<const Dfa>> named(const std::string& pattern) {
    std::shared_ptr<const Dfa>& known = document_.checks().names[pattern];
    if (known == nullptr) {
      BULKHEAD_TRY(known, regex_automaton(pattern, Match::kAnywhere));
    }
    return known;
  }

  Result<bool> property(const std::string& key, const Json& value, const std::string& name,
                        const Json& member) {
    if (key == "properties")
      return value.contains(name) ? valid(member, value[name]) : Result<bool>(true);
    if (key == "propertyNames") return valid(Json(name), value);
    std::u32string codes;
    if (!decode_utf8(name, codes)) return false;
    const Json none = Json::object();
    const auto patterns = schema_->find("patternProperties");
    bool matched = false;
    for (const auto& [pattern, schema] : (patterns == schema_->end() ? none : *patterns).items()) {
      BULKHEAD_RETURN_IF_ERROR(spend(1));
      BULKHEAD_TRY(const DfaPtr automaton, named(pattern));
      if (!automaton->matches(codes)) continue;
      matched = true;
      if (key != "patternProperties") continue;
      BULKHEAD_TRY(const bool ok, valid(member, schema));
      if (!ok) return false;
    }
    if (key == "patternProperties" || matched) return true;
    const auto declared = schema_->find("properties");
    if (declared != schema_->end() && declared->contains(name)) return true;
    return valid(member, value);
  }

  const Json& it_;
  const Json* schema_;
  SchemaDocument& document_;
  Complaints& complaints_;
  int depth_;
};

}  // namespace

Result<bool> validates(const Json& instance, const Json* schema, SchemaDocument& document,
                       Complaints& complaints, int depth) {
  return Validator(instance, schema, document, complaints, depth).run();
}

Result<bool> validates_alone(const Json& instance, const Json* schema, SchemaDocument& document,
                             Complaints& complaints) {
  return Validator(instance, schema, document, complaints, 0).run_alone();
}

}  // namespace bulkhead::constrain
