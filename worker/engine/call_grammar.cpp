// Grammars are built from their end: each function takes what follows and returns where it begins.
#include "worker/engine/call_grammar.hpp"

#include <algorithm>
#include <utility>

#include "worker/constrain/shared_automata.hpp"
#include "worker/engine/call_tools.hpp"
#include "worker/model/answer/json_text.hpp"

namespace bulkhead::engine {
namespace {

using constrain::Grammar;
using constrain::Node;
using constrain::NodeId;
using constrain::NodeKind;
using constrain::RuleId;
using model::answer::Calls;
using model::answer::CallSyntax;
using model::answer::Family;
using model::answer::NameForm;

class Builder {
 public:
  Builder(const Family& family, const CallWish& wish,
          const std::function<std::string(std::string_view)>& spell)
      : calls_(family.calls),
        begun_(family.calls.begun_by_prompt),
        wish_(wish),
        spell_(spell),
        grammar_(wish.content == nullptr ? std::make_shared<Grammar>()
                                         : std::make_shared<Grammar>(*wish.content)) {}

  Result<CallGrammar> make() {
    const RuleId content = grammar_->root;
    grammar_->root = grammar_->add_rule();
    BULKHEAD_TRY(OfferedTools offered,
                 add_tools(*grammar_, calls_, wish_.tools, wish_.named, spell_));
    tools_ = std::move(offered.tools);
    const NodeId end = grammar_->add(Node{});
    NodeId after = end;
    const bool more = !wish_.one_call && repeats();
    if (more) after = grammar_->add(choice({}));
    const NodeId first = block(after);
    // The blanks after a block may be the end of the answer.
    if (more) {
      add_way(after, end);
      begun_ = false;
      const NodeId again = calls_.begun_by_prompt ? block(after) : first;
      add_way(after, blanks(grammar_->add(choice({end, again}))));
    }
    // A prompt that has begun the call leaves no place before its name.
    const NodeId calls = calls_.begun_by_prompt ? first : blanks(first);
    grammar_->rules[grammar_->root] =
        wish_.content == nullptr ? calls : maybe(calls, run(content, end));
    BULKHEAD_RETURN_IF_ERROR(grammar_->finish());
    return CallGrammar{std::move(grammar_), std::move(offered.warnings)};
  }

 private:
  // ---- nodes ----

  static Node choice(std::vector<NodeId> branches) {
    Node node;
    node.kind = NodeKind::kSplit;
    node.branches = std::move(branches);
    return node;
  }
  // `way` is made before the choice is looked up: making it moves the nodes in memory.
  void add_way(NodeId choice, NodeId way) { grammar_->nodes[choice].branches.push_back(way); }
  NodeId mark(std::string_view text, NodeId next) {
    return text.empty() ? next : grammar_->bytes(spell_(text), next);
  }
  NodeId matching(const char* expression, NodeId next) {
    return grammar_->leaf(NodeKind::kBytes, constrain::shared_of(*grammar_).expression(expression),
                          next);
  }
  NodeId blanks(NodeId next) { return matching("[ \\n]{0,2}", next); }
  // Command R writes each call of a list on a line of its own.
  NodeId blanks_in_list(NodeId next) { return matching("[ \\n]{0,2}|\\n {2,8}", next); }
  NodeId maybe(NodeId with, NodeId without) { return grammar_->add(choice({with, without})); }
  NodeId run(RuleId rule, NodeId next) {
    Node node;
    node.kind = NodeKind::kCall;
    node.index = rule;
    node.next = next;
    return grammar_->add(std::move(node));
  }
  NodeId arguments(const OfferedTool& tool, NodeId next) { return run(tool.arguments, next); }
  template <typename One>
  NodeId any_tool(One one) {
    std::vector<NodeId> ways;
    for (const OfferedTool& tool : tools_)
      ways.push_back(one(tool));
    return grammar_->add(choice(std::move(ways)));
  }
  // , blanks
  NodeId comma(NodeId next) { return blanks(mark(",", blanks(next))); }

  // ---- syntaxes ----

  // Says whether a call may follow a call. Without marks, nothing separates two calls; a harmony answer ends with its
  // call.
  bool repeats() const { return !calls_.bare_json && calls_.syntax != CallSyntax::kChannels; }

  NodeId block(NodeId next) {
    switch (calls_.syntax) {
      case CallSyntax::kJson:
        return calls_.section.empty() ? json_block(calls_.closers.size(), next) : sections(next);
      case CallSyntax::kJsonList:
      case CallSyntax::kKeyedList:
      case CallSyntax::kPython:
        return list(next);
      case CallSyntax::kNamed:
      case CallSyntax::kTagged:
      case CallSyntax::kBareKeys:
        return sections(next);
      case CallSyntax::kChannels:
        return channels(next);
      case CallSyntax::kNone:
        break;
    }
    return next;
  }

  NodeId closers(std::size_t from, std::size_t to, NodeId next) {
    if (calls_.closers_left_out) return next;
    for (std::size_t i = to; i-- > from;)
      next = blanks(mark(calls_.closers[i], next));
    return next;
  }

  NodeId json_block(std::size_t closers_of_call, NodeId next) {
    const NodeId call = json_call(closers(0, closers_of_call, next));
    std::vector<NodeId> ways;
    for (const std::string& open : calls_.opens)
      ways.push_back(mark(open, blanks(call)));
    if (calls_.bare_json) ways.push_back(call);
    if (other_forms()) ways.push_back(function_object(closers(0, closers_of_call, next)));
    return grammar_->add(choice(std::move(ways)));
  }

  bool other_forms() const { return calls_.bare_json && wish_.other_forms; }

  NodeId key(std::string_view name, NodeId value) {
    return mark(model::answer::json_quoted(name), blanks(mark(":", blanks(value))));
  }

  // {"function": {"name": N, "arguments": {...}}}
  NodeId function_object(NodeId next) {
    const NodeId inner = json_call(blanks(mark("}", next)));
    return mark("{", blanks(key(model::answer::kFunctionKey, inner)));
  }

  // {"name": N, "arguments": {...}}, with an id before or after it if the family has ids
  NodeId json_call(NodeId next) {
    const auto& keys = calls_.keys;
    const char* const id = "\"[A-Za-z0-9_\\-]{1,40}\"";
    NodeId end = blanks(mark("}", next));
    if (!keys.id.empty() && keys.id_last)
      end =
          maybe(end, comma(key(keys.id, matching("\"[A-Za-z0-9]{9}\"", blanks(mark("}", next))))));
    const NodeId named = any_tool([&](const OfferedTool& tool) {
      const NodeId value = arguments(tool, end);
      std::vector<NodeId> ways;
      for (const std::string& name : keys.arguments)
        ways.push_back(key(name, value));
      return mark(model::answer::json_quoted(tool.name), comma(grammar_->add(choice(ways))));
    });
    NodeId first = key(keys.name, named);
    if (!keys.id.empty() && !keys.id_last) first = key(keys.id, matching(id, comma(first)));
    return mark("{", blanks(first));
  }

  // {N: {...}}
  NodeId keyed_call(NodeId next) {
    const NodeId end = blanks(mark("}", next));
    return mark("{", blanks(any_tool([&](const OfferedTool& tool) {
                  return mark(model::answer::json_quoted(tool.name),
                              blanks(mark(":", blanks(arguments(tool, end)))));
                })));
  }

  // The call N(...) in Python's notation.
  NodeId python_call(NodeId next) {
    return any_tool(
        [&](const OfferedTool& tool) { return mark(tool.name, arguments(tool, next)); });
  }

  NodeId item_of_list(NodeId next) {
    switch (calls_.syntax) {
      case CallSyntax::kKeyedList:
        return keyed_call(next);
      case CallSyntax::kPython:
        return python_call(next);
      case CallSyntax::kJsonList:
      case CallSyntax::kJson:
      case CallSyntax::kNamed:
      case CallSyntax::kTagged:
      case CallSyntax::kBareKeys:
      case CallSyntax::kChannels:
      case CallSyntax::kNone:
        break;
    }
    return other_forms() ? maybe(json_call(next), function_object(next)) : json_call(next);
  }

  NodeId list(NodeId next) {
    const NodeId close = blanks(mark("]", closers(0, calls_.closers.size(), next)));
    const NodeId after = grammar_->add(choice({close}));
    const NodeId item = item_of_list(after);
    const NodeId begin = blanks_in_list(item);
    if (!wish_.one_call) add_way(after, blanks(mark(",", begin)));
    std::vector<NodeId> ways;
    for (const std::string& open : calls_.opens)
      ways.push_back(mark(open, blanks(mark("[", begin))));
    if (calls_.bare_json) ways.push_back(mark("[", begin));
    if (other_forms() && calls_.syntax == CallSyntax::kJsonList) ways.push_back(item_of_list(next));
    return grammar_->add(choice(std::move(ways)));
  }

  // Calls with their own marks, within a section's marks if the family has sections.
  NodeId sections(NodeId next) {
    std::vector<NodeId> ways;
    const std::size_t closers_of_call = calls_.closers.size() - (calls_.section.empty() ? 0 : 1);
    if (!calls_.section.empty()) {
      const NodeId close = closers(closers_of_call, calls_.closers.size(), next);
      const NodeId after = grammar_->add(choice({close}));
      const NodeId call = one_call(closers_of_call, after);
      if (!wish_.one_call) add_way(after, blanks(call));
      ways.push_back(mark(calls_.section, blanks(call)));
    }
    // The model may forget a section's mark.
    ways.push_back(one_call(closers_of_call, next));
    return grammar_->add(choice(std::move(ways)));
  }

  NodeId one_call(std::size_t closers_of_call, NodeId next) {
    if (calls_.syntax == CallSyntax::kJson) return json_block(closers_of_call, next);
    return calls_.syntax == CallSyntax::kTagged ? tagged_call(next)
                                                : named_call(closers_of_call, next);
  }

  // NAME end, the arguments in the schema's order, call_close
  NodeId tagged_call(NodeId next) {
    const NodeId close = mark(calls_.tags.call_close, next);
    const std::string name_end = calls_.name_ends.empty() ? "" : calls_.name_ends[0];
    const NodeId name = any_tool([&](const OfferedTool& tool) {
      NodeId rest = close;
      if (tool.any_members && !calls_.tags.elements) {
        rest = grammar_->add(choice({close}));
        const NodeId value = matching_text(calls_.tags.value_close);
        const NodeId key = argument({}, true, value, blanks(rest));
        add_way(rest, key);
      }
      for (std::size_t i = tool.members.size(); i-- > 0;) {
        const constrain::LooseMember& member = tool.members[i];
        const NodeId with = member_argument(member, blanks(rest));
        rest = member.required ? with : maybe(with, rest);
      }
      rest = blanks(rest);
      if (!calls_.name_tail.empty())
        rest = matching(" index=\"[0-9]{1,3}\"", mark(calls_.name_tail, rest));
      return mark(tool.name + name_end, rest);
    });
    std::vector<NodeId> ways;
    for (const std::string& open : calls_.opens)
      ways.push_back(mark(open, name));
    return grammar_->add(choice(std::move(ways)));
  }

  // If a value may be a text or something else, the text may stand without quotes, because models write texts so.
  NodeId member_argument(const constrain::LooseMember& member, NodeId next) {
    if (member.text) return argument(member.name, true, *member.text, next);
    const NodeId json = argument(member.name, false, member.json, next);
    if (!member.some || calls_.tags.elements) return json;
    return maybe(argument(member.name, true, *member.some, next), json);
  }

  // param_open KEY key_close [value_open] VALUE value_close; an empty key: any
  NodeId argument(const std::string& key, bool text, RuleId value, NodeId next) {
    const model::answer::Tags& tags = calls_.tags;
    const std::string around = tags.strip_newlines ? "\n" : "";
    const std::string key_of_close = tags.elements ? key + ">" : "";
    NodeId at = mark(around + tags.value_close + key_of_close, next);
    at = mark(around, run(value, at));
    if (!tags.value_open.empty()) at = blanks(mark(tags.value_open, at));
    if (!tags.type_end.empty()) {
      at = mark(tags.type_end, at);
      at = text ? mark(tags.text_type, at) : matching(tags.other_types.c_str(), at);
    }
    at = mark(tags.key_close, at);
    at = key.empty() ? matching("[A-Za-z0-9_.$\\-]{1,128}", at) : mark(key, at);
    return mark(tags.param_open, at);
  }

  // Makes the rule for any text that does not contain `mark`.
  RuleId matching_text(std::string_view without) {
    const RuleId rule = grammar_->add_rule();
    grammar_->rules[rule] = grammar_->leaf(
        NodeKind::kText, *constrain::shared_of(*grammar_).without(std::string(without)),
        grammar_->add(Node{}));
    return rule;
  }

  NodeId named_call(std::size_t closers_of_call, NodeId next) {
    const bool typed = calls_.name_form == NameForm::kTyped;  // the first closer is the fence's
    const NodeId end = closers(typed ? 1 : 0, closers_of_call, next);
    const NodeId fenced = typed ? blanks(mark(calls_.closers[0], end)) : end;
    const NodeId name = any_tool([&](const OfferedTool& tool) {
      const NodeId value = arguments(tool, end);
      switch (calls_.name_form) {
        case NameForm::kPlain:
          return plain_name(tool, value);
        case NameForm::kCallWord:
          return mark("call:" + tool.name, value);
        case NameForm::kWithIndex:
          return mark("functions." + tool.name,
                      matching(":[0-9]{1,3}", mark(calls_.name_ends[0], value)));
        case NameForm::kTyped:
          return maybe(mark(tool.name, mark(calls_.name_ends[0], value)),
                       mark("function", mark(calls_.name_ends[0], mark(tool.name + "\n```json\n",
                                                                       arguments(tool, fenced)))));
      }
      return value;
    });
    const NodeId first = calls_.id_close.empty()
                             ? name
                             : matching("[A-Za-z0-9_\\-]{1,40}", mark(calls_.id_close, name));
    std::vector<NodeId> ways;
    for (const std::string& open : calls_.opens)
      ways.push_back(mark(open, first));
    if (begun_) ways.push_back(first);
    return grammar_->add(choice(std::move(ways)));
  }

  // NAME end, or NAME id_open ID end
  NodeId plain_name(const OfferedTool& tool, NodeId value) {
    NodeId behind = mark(calls_.name_ends[0], value);
    if (!calls_.id_open.empty())
      behind = maybe(behind, mark(calls_.id_open, matching("[A-Za-z0-9]{9}", behind)));
    return mark(tool.name, behind);
  }

  // What follows `to=`, which other forms of the header have before or after their channel.
  NodeId channels(NodeId next) {
    const NodeId name = any_tool([&](const OfferedTool& tool) {
      const NodeId body = mark("<|message|>", arguments(tool, next));
      const NodeId marked = maybe(mark("<|constrain|>json", body), body);
      // Without its mark the word needs a space before it, because it would otherwise be part of the name.
      const NodeId type = maybe(mark(" ", maybe(mark("json", body), marked)), marked);
      return mark("functions." + tool.name, maybe(mark("<|channel|>commentary", type), type));
    });
    const NodeId recipient = mark("to=", name);
    const NodeId header =
        maybe(mark("<|channel|>commentary ", recipient), maybe(mark(" ", recipient), recipient));
    return maybe(mark("<|start|>assistant", header), header);
  }

  const Calls& calls_;
  bool begun_;  // the prompt may have written the opening mark of the call that is made
  const CallWish& wish_;
  const std::function<std::string(std::string_view)>& spell_;
  std::shared_ptr<Grammar> grammar_;
  std::vector<OfferedTool> tools_;
};

}  // namespace

Result<CallGrammar> make_call_grammar(const Family& family, const CallWish& wish,
                                      const std::function<std::string(std::string_view)>& spell) {
  return Builder(family, wish, spell).make();
}

Result<std::shared_ptr<const Grammar>> in_final_channel(
    const Grammar& content, const std::function<std::string(std::string_view)>& spell) {
  auto whole = std::make_shared<Grammar>(content);
  Node call;
  call.kind = NodeKind::kCall;
  call.index = content.root;
  call.next = whole->add(Node{});
  const NodeId body = whole->bytes(spell("<|message|>"), whole->add(std::move(call)));
  Node typed;
  typed.kind = NodeKind::kSplit;
  typed.branches = {body, whole->bytes(spell(" <|constrain|>json"), body)};
  const NodeId header = whole->bytes(spell("<|channel|>final"), whole->add(std::move(typed)));
  Node begun;
  begun.kind = NodeKind::kSplit;
  begun.branches = {header, whole->bytes(spell("<|start|>assistant"), header)};
  whole->root = whole->add_rule();
  whole->rules[whole->root] = whole->add(std::move(begun));
  BULKHEAD_RETURN_IF_ERROR(whole->finish());
  return std::shared_ptr<const Grammar>(std::move(whole));
}

}  // namespace bulkhead::engine
