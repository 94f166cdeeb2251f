// Reads the form that a request demands of its answer: schemas as they were written, grammars,
// expressions.
#include <initializer_list>
#include <string>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "config/base/json_members.hpp"
#include "orchestrator/http/request_fields.hpp"

namespace bulkhead::orchestrator {
namespace {

using ipc::ConstraintKind;
using nlohmann::json;

// Null when absent or null.
const json* find(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// Returns valid JSON without its blanks. A parser and a writer would round integers beyond 64 bits. They would also
// lose the order of the members, and an answer has its members in that order.
std::string without_blanks(std::string_view valid) {
  std::string out;
  bool inside = false;  // of a string
  for (std::size_t i = 0; i < valid.size(); ++i) {
    const char c = valid[i];
    if (!inside && (c == ' ' || c == '\t' || c == '\n' || c == '\r')) continue;
    if (c == '"') inside = !inside;
    out += c;
    if (inside && c == '\\') out += valid[++i];
  }
  return out;
}

// Takes the constraint that is asked for. If there are two, it keeps the first one and refuses the second one.
class ConstraintReader {
 public:
  ConstraintReader(Fields& fields, std::string_view body, ipc::Constraint& out)
      : fields_(fields), body_(body), out_(out) {}

  void read() {
    read_response_format();
    read_schema("json_schema");
    read_schema("guided_json");
    read_text("grammar", ConstraintKind::kGrammar);
    read_grammar_string();
    read_text("guided_grammar", ConstraintKind::kGrammar);
    read_text("ebnf", ConstraintKind::kGrammar);  // SGLang's
    read_text("regex", ConstraintKind::kRegex);
    read_text("guided_regex", ConstraintKind::kRegex);
    read_text("regex_pattern", ConstraintKind::kRegex);  // TabbyAPI's
    if (const json* choice = fields_.get("guided_choice"))
      want_choice(*choice, "guided_choice", "guided_choice");
    read_structured_outputs();
    if (out_.kind != ConstraintKind::kNone && fields_.boolean("ignore_eos", false)) {
      fields_.refuse("ignore_eos",
                     fmt::format("can't be true beside '{}', which says where an answer ends.",
                                 out_.parameter),
                     "invalid_combination");
    }
  }

 private:
  void missing(const std::string& name) {
    fields_.refuse(name, "is missing.", "missing_parameter");
  }

  void want(ConstraintKind kind, std::string text, const std::string& parameter) {
    if (out_.kind != ConstraintKind::kNone) {
      return fields_.refuse(
          parameter,
          fmt::format("can't be used beside '{}': an answer can follow only one of them.",
                      out_.parameter),
          "invalid_combination");
    }
    if (text.size() > kMaxConstraintBytes) {
      return fields_.refuse(
          parameter,
          fmt::format("has {} bytes; at most {} are taken.", text.size(), kMaxConstraintBytes),
          "out_of_range");
    }
    out_ = {kind, std::move(text), parameter};
  }

  // Takes the schema that the request has under these names, one inside the other. `where` names it in errors.
  void want_schema(const json& schema, std::initializer_list<const char*> path,
                   const std::string& where, const std::string& parameter) {
    if (!schema.is_object() && !schema.is_boolean())
      return fields_.wrong_type(where, "a JSON schema, which is an object", schema);
    if (has_wide_objects(schema))
      return fields_.refuse(where, too_many_members(schema), "out_of_range");
    // Parses only the schema, not the whole body: objects beside it may have any number of members.
    std::string_view text = body_;
    for (const char* name : path) {
      JsonMember member[] = {{name}};
      find_json_members(text, member);
      text = member[0].text;
    }
    want(ConstraintKind::kJsonSchema, without_blanks(text), parameter);
  }

  void read_response_format() {
    const std::string name = "response_format";
    const json* format = fields_.get(name.c_str());
    if (format == nullptr) return;
    if (!format->is_object()) return fields_.wrong_type(name, "an object", *format);
    const json* type = find(*format, "type");
    if (type == nullptr) return missing(name + ".type");
    const json* schema = find(*format, "schema");  // llama.cpp's place for it
    if (is_text(*type, "text")) return;
    if (is_text(*type, "json_object") && schema == nullptr)
      return want(ConstraintKind::kJsonObject, {}, name);
    if (!is_text(*type, "json_object") && !is_text(*type, "json_schema")) {
      return fields_.refuse(name + ".type", "must be 'text', 'json_object' or 'json_schema'.",
                            "unsupported_parameter");
    }
    if (schema != nullptr)
      return want_schema(*schema, {"response_format", "schema"}, name + ".schema", name);
    const std::string inner = name + ".json_schema";
    const json* named = find(*format, "json_schema");
    if (named == nullptr) return missing(inner);
    if (!named->is_object()) return fields_.wrong_type(inner, "an object", *named);
    schema = find(*named, "schema");
    if (schema == nullptr) return missing(inner + ".schema");
    want_schema(*schema, {"response_format", "json_schema", "schema"}, inner + ".schema", name);
  }

  // A schema beside the other fields: an object, or text that is one.
  void read_schema(const char* name) {
    const json* value = fields_.get(name);
    if (value == nullptr || is_empty(*value)) return;
    if (value->is_string()) return read_text(name, ConstraintKind::kJsonSchema);
    want_schema(*value, {name}, name, name);
  }

  void read_text(const char* name, ConstraintKind kind) {
    std::string text = fields_.text(name);
    if (!text.empty()) want(kind, std::move(text), name);
  }

  // Reads the name that text-generation-webui has for `grammar`. SillyTavern sends a grammar under both names.
  void read_grammar_string() {
    const char* const name = "grammar_string";
    if (const json* grammar = fields_.get(name);
        grammar != nullptr && out_.parameter == "grammar" && is_text(*grammar, out_.text))
      return;
    read_text(name, ConstraintKind::kGrammar);
  }

  // Reads vLLM's newer field, which has the other fields of its in one object.
  void read_structured_outputs() {
    const char* const name = "structured_outputs";
    const json* all = fields_.get(name);
    if (all == nullptr || is_empty(*all)) return;
    if (!all->is_object()) return fields_.wrong_type(name, "an object", *all);
    for (const auto& [key, wanted] : all->items()) {
      if (wanted == false || is_empty(wanted)) continue;
      const std::string where = fmt::format("{}.{}", name, key);
      if (key == "json" && !wanted.is_string()) {
        want_schema(wanted, {name, "json"}, where, name);
      } else if (key == "json" || key == "regex" || key == "grammar") {
        if (!wanted.is_string()) return fields_.wrong_type(where, "a string", wanted);
        want(key == "json"    ? ConstraintKind::kJsonSchema
             : key == "regex" ? ConstraintKind::kRegex
                              : ConstraintKind::kGrammar,
             wanted.get<std::string>(), name);
      } else if (key == "choice") {
        want_choice(wanted, where, name);
      } else if (key == "json_object" && wanted == true) {
        want(ConstraintKind::kJsonObject, {}, name);
      } else if (key != "disable_fallback") {  // it has no other way to hold an answer anyway
        return fields_.refuse(where,
                              "is not supported by this server; it takes json, regex, choice, "
                              "grammar and json_object.",
                              "unsupported_parameter");
      }
    }
  }

  // The answer is one of these texts.
  void want_choice(const json& choices, const std::string& where, const std::string& parameter) {
    if (!choices.is_array()) return fields_.wrong_type(where, "an array of strings", choices);
    std::string grammar;
    for (const json& choice : choices) {
      if (!choice.is_string())
        return fields_.refuse(where, "must be an array of strings.", "invalid_type");
      grammar += grammar.empty() ? "root ::= \"" : " | \"";
      for (const char c : choice.get_ref<const std::string&>()) {
        if (static_cast<unsigned char>(c) < 0x20) {
          grammar += fmt::format("\\x{:02X}", c);
        } else {
          if (c == '"' || c == '\\') grammar += '\\';
          grammar += c;
        }
      }
      grammar += '"';
    }
    if (!grammar.empty()) want(ConstraintKind::kGrammar, std::move(grammar), parameter);
  }

  Fields& fields_;
  std::string_view body_;
  ipc::Constraint& out_;
};

}  // namespace

void read_constraint(Fields& fields, std::string_view body, ipc::Constraint& constraint) {
  ConstraintReader(fields, body, constraint).read();
}

}  // namespace bulkhead::orchestrator
