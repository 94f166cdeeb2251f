// Reads llama.cpp's grammar format (GBNF) into a grammar of automaton.hpp: rules "name ::= alternatives", quoted
// texts, character classes, ".", groups, and the repetitions * + ? {m} {m,} {m,n}. Like llama.cpp, it refuses a rule
// that calls itself before it takes a character.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "worker/constrain/constraint.hpp"
#include "worker/constrain/smallest_set.hpp"
#include "worker/constrain/term.hpp"

namespace bulkhead::constrain {
namespace {

constexpr std::size_t kMostGrammarBytes = 1U << 20;
constexpr int kMostRuleDepth = 100;
constexpr std::uint32_t kMostRuleRepeat = 100'000;

class Reader {
 public:
  Reader(std::u32string text, Grammar& grammar) : text_(std::move(text)), grammar_(grammar) {}

  Status read() {
    end_ = grammar_.add(Node{});
    skip(true);
    while (at_ < text_.size()) {
      BULKHEAD_RETURN_IF_ERROR(rule());
      skip(true);
    }
    for (const auto& [name, id] : names_) {
      if (grammar_.rules[id] == kNoNode) {
        return Error(ErrorCode::kInvalidArgument,
                     "the rule \"" + name + "\" is used but not there");
      }
    }
    const auto root = names_.find("root");
    if (root == names_.end()) {
      return Error(ErrorCode::kInvalidArgument, "there is no rule \"root\"");
    }
    grammar_.root = root->second;
    return {};
  }

 private:
  Error wrong(const std::string& what) const {
    const auto line =
        1 + std::count(text_.begin(),
                       text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size())),
                       U'\n');
    return Error(ErrorCode::kInvalidArgument, what + " in line " + std::to_string(line));
  }
  bool looking_at(std::u32string_view wanted) const {
    return std::u32string_view(text_).substr(at_, wanted.size()) == wanted;
  }
  bool take(std::u32string_view wanted) {
    if (!looking_at(wanted)) return false;
    at_ += wanted.size();
    return true;
  }
  void skip(bool lines) {
    for (; at_ < text_.size(); ++at_) {
      const char32_t c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n')
          ++at_;
        if (!lines || at_ == text_.size()) return;
      } else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) {
        return;
      }
    }
  }
  std::string name() {
    std::string out;
    for (; at_ < text_.size(); ++at_) {
      const char32_t c = text_[at_];
      const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                        (c >= '0' && c <= '9') || c == '-' || c == '_';
      if (!word) break;
      out.push_back(static_cast<char>(c));
    }
    return out;
  }
  RuleId named(const std::string& name) {
    const auto known = names_.find(name);
    if (known != names_.end()) return known->second;
    return names_[name] = grammar_.add_rule();
  }

  Status rule() {
    const std::string own = name();
    if (own.empty()) return wrong("the name of a rule was expected");
    skip(false);
    if (!take(U"::=")) return wrong("\"::=\" was expected after \"" + own + "\"");
    skip(true);
    const RuleId id = named(own);
    if (grammar_.rules[id] != kNoNode) return wrong("the rule \"" + own + "\" is there twice");
    BULKHEAD_TRY(grammar_.rules[id], choice(0));
    if (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') {
      return wrong("the end of the rule \"" + own + "\" was expected");
    }
    return {};
  }

  // The nodes of a rule are made from its end to its beginning, so the rule is parsed first and built afterwards.
  struct Element {
    NodeKind kind = NodeKind::kCall;  // kCall: `rule`; kText: `dfa`
    RuleId rule = 0;
    DfaPtr dfa;
    std::optional<std::u32string> text;  // which `dfa` takes and nothing else, if it is known
  };

  Result<NodeId> choice(int depth) {
    if (depth > kMostRuleDepth) return wrong("groups nested too deep");
    Node split;
    split.kind = NodeKind::kSplit;
    std::vector<std::u32string>
        texts;  // alternatives that are one text each: one automaton takes all of them
    do {
      skip(true);
      BULKHEAD_TRY(std::vector<Element> elements, sequence(depth));
      if (elements.size() == 1 && elements[0].text) {
        texts.push_back(*std::move(elements[0].text));
      } else {
        split.branches.push_back(nodes_of(elements));
      }
      skip(depth > 0);
    } while (take(U"|"));
    if (!texts.empty())
      split.branches.push_back(grammar_.leaf(NodeKind::kText, literals(texts, true), end_));
    return split.branches.size() == 1 ? split.branches[0] : grammar_.add(std::move(split));
  }

  Result<std::vector<Element>> sequence(int depth) {
    std::vector<Element> elements;
    while (true) {
      skip(depth > 0);
      if (at_ >= text_.size() || looking_at(U"|") || looking_at(U")") || looking_at(U"\n") ||
          looking_at(U"\r")) {
        break;
      }
      BULKHEAD_TRY(Element element, atom(depth));
      skip(depth > 0);
      while (looking_at(U"*") || looking_at(U"+") || looking_at(U"?") || looking_at(U"{")) {
        BULKHEAD_TRY(element, repeated(std::move(element)));
        skip(depth > 0);
      }
      elements.push_back(std::move(element));
      if (grammar_.nodes.size() > kMostNodes) return wrong("the grammar is too large");
    }
    return elements;
  }

  NodeId nodes_of(const std::vector<Element>& elements) {
    NodeId next = end_;
    for (std::size_t i = elements.size(); i-- > 0;)
      next = node(elements[i], next);
    return next;
  }

  NodeId node(const Element& element, NodeId next) {
    if (element.kind == NodeKind::kText) return grammar_.leaf(NodeKind::kText, element.dfa, next);
    return grammar_.add(NodeKind::kCall, element.rule, next);
  }

  Result<Element> repeated(Element inner) {
    std::uint32_t min = 0, max = kUnbounded;
    if (take(U"*")) {
    } else if (take(U"+")) {
      min = 1;
    } else if (take(U"?")) {
      max = 1;
    } else {
      ++at_;
      BULKHEAD_TRY(min, number());
      max = min;
      if (take(U",")) {
        max = kUnbounded;
        skip(false);
        if (!looking_at(U"}")) {
          BULKHEAD_TRY(max, number());
        }
      }
      skip(false);
      if (!take(U"}")) return wrong("\"}\" was expected");
      if (max < min) return wrong("a repetition {m,n} with m over n");
    }
    // The repetition gets its own rule, whose frame has the count.
    Element out;
    out.rule = grammar_.add_rule();
    const NodeId loop = grammar_.add(Node{});
    const NodeId body = node(inner, loop);
    Node& made = grammar_.nodes[loop];
    made.kind = NodeKind::kLoop;
    made.min = min;
    made.max = max;
    made.next = end_;
    made.branches = {body};
    grammar_.rules[out.rule] = loop;
    return out;
  }

  Result<std::uint32_t> number() {
    skip(false);
    std::uint32_t out = 0;
    const std::size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      out = std::min<std::uint32_t>(out * 10 + (text_[at_] - '0'), kMostRuleRepeat + 1);
    }
    skip(false);
    if (at_ == begin) return wrong("a number was expected");
    if (out > kMostRuleRepeat) return wrong("a repetition over 100000");
    return out;
  }

  Result<Element> atom(int depth) {
    Element out;
    if (take(U"(")) {
      BULKHEAD_TRY(const NodeId inner, choice(depth + 1));
      skip(true);
      if (!take(U")")) return wrong("\")\" was expected");
      out.rule = grammar_.add_rule();
      grammar_.rules[out.rule] = inner;
      return out;
    }
    if (looking_at(U"\"") || looking_at(U"[") || looking_at(U".")) {
      out.kind = NodeKind::kText;
      if (text_[at_] == '"') {
        BULKHEAD_TRY(out.text, quoted());
        out.dfa = literals(std::span(&*out.text, 1), true);
      } else {
        BULKHEAD_TRY(out.dfa, char_class());
      }
      return out;
    }
    if (looking_at(U"<") || looking_at(U"!")) {
      return wrong("tokens, as in <think>, can't be enforced: write a text in quotes");
    }
    const std::string called = name();
    if (called.empty()) return wrong("a text, a class, a group or a rule's name was expected");
    out.rule = named(called);
    return out;
  }

  Result<std::u32string> quoted() {
    ++at_;
    std::u32string text;
    while (at_ < text_.size() && text_[at_] != '"') {
      BULKHEAD_TRY(const char32_t code, character());
      text.push_back(code);
    }
    if (!take(U"\"")) return wrong("a text without its end");
    return text;
  }

  Result<DfaPtr> char_class() {
    CodeRanges ranges;
    if (take(U".")) {
      ranges = {{0, kLastCodePoint}};
    } else {
      ++at_;
      const bool negative = take(U"^");
      while (at_ < text_.size() && text_[at_] != ']') {
        BULKHEAD_TRY(const char32_t low, character());
        char32_t high = low;
        if (looking_at(U"-") && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
          ++at_;
          BULKHEAD_TRY(high, character());
        }
        if (high < low) return wrong("a range that runs down");
        ranges.emplace_back(low, high);
      }
      if (!take(U"]")) return wrong("\"]\" was expected");
      ranges = normalise(std::move(ranges));
      if (negative) ranges = invert(ranges);
    }
    auto dfa = std::make_shared<Dfa>();
    for (const auto& [low, high] : ranges)
      dfa->states[0].ranges.push_back({low, high, 1});
    dfa->states.push_back({true, {}});
    trim(*dfa);
    return DfaPtr(dfa);
  }

  Result<char32_t> character() {
    if (at_ >= text_.size()) return wrong("the grammar ends within a text");
    const char32_t c = text_[at_++];
    if (c != '\\') return c;
    if (at_ >= text_.size()) return wrong("the grammar ends within an escape");
    const char32_t escaped = text_[at_++];
    if (escaped == 'n') return U'\n';
    if (escaped == 't') return U'\t';
    if (escaped == 'r') return U'\r';
    if (escaped == 'x') return hex(2);
    if (escaped == 'u') return hex(4);
    if (escaped == 'U') return hex(8);
    constexpr std::u32string_view kThemselves = U"\"\\[]-^/";
    if (kThemselves.find(escaped) != kThemselves.npos) return escaped;
    return wrong("an escape that does not exist");
  }

  Result<char32_t> hex(int digits) {
    std::uint64_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char32_t c = at_ < text_.size() ? text_[at_] : 0;
      const char32_t lower = c | 0x20;
      if (c >= '0' && c <= '9')
        value = value * 16 + (c - '0');
      else if (lower >= 'a' && lower <= 'f')
        value = value * 16 + (lower - 'a' + 10);
      else
        return wrong("a hexadecimal digit was expected");
    }
    if (value > kLastCodePoint) return wrong("a character past U+10FFFF");
    return static_cast<char32_t>(value);
  }

  std::u32string text_;
  std::size_t at_ = 0;
  Grammar& grammar_;
  NodeId end_ = 0;
  std::map<std::string, RuleId> names_;
};

// Finds rules that call themselves before a character is taken.
class LeftCalls {
 public:
  explicit LeftCalls(const Grammar& grammar) : grammar_(grammar) { find_empty(); }

  bool circular() {
    std::vector<std::uint8_t> state(grammar_.nodes.size());
    for (NodeId start = 0; start < grammar_.nodes.size(); ++start) {
      if (state[start] == 0 && cycle_from(start, state)) return true;
    }
    return false;
  }

 private:
  // Returns the nodes that can be reached from this one without taking a character, without loops' bodies.
  std::vector<NodeId> reached(NodeId at) const {
    const Node& node = grammar_.nodes[at];
    switch (node.kind) {
      case NodeKind::kSplit:
        return node.branches;
      case NodeKind::kCall: {
        std::vector<NodeId> out = {grammar_.rules[node.index]};
        if (empty_[grammar_.rules[node.index]]) out.push_back(node.next);
        return out;
      }
      case NodeKind::kLoop: {
        // The way from the body back here begins the next round; it is not a deeper call.
        std::vector<NodeId> out = {node.next};
        if (!node.branches.empty()) {
          const Node& body = grammar_.nodes[node.branches[0]];
          if (body.kind == NodeKind::kCall) out.push_back(grammar_.rules[body.index]);
        }
        return out;
      }
      case NodeKind::kBytes:
      case NodeKind::kText:
        if (grammar_.automata[node.index]->states[0].accept) return {node.next};
        return {};
      case NodeKind::kEnd:
      case NodeKind::kString:
      case NodeKind::kObject:
      case NodeKind::kKeyStart:
      case NodeKind::kKey:
      case NodeKind::kArray:
      case NodeKind::kItem:
        return {};
    }
    return {};
  }

  // Finds nodes from which the rule's end can be reached without taking a character.
  void find_empty() {
    empty_ = smallest_set(grammar_.nodes.size(), [this](NodeId at, const auto& known) {
      return is_empty(grammar_.nodes[at], known);
    });
  }
  bool is_empty(const Node& node, const std::function<bool(NodeId)>& empty) const {
    switch (node.kind) {
      case NodeKind::kEnd:
        return true;
      case NodeKind::kSplit:
        return std::any_of(node.branches.begin(), node.branches.end(), std::cref(empty));
      case NodeKind::kCall:
        return empty(grammar_.rules[node.index]) && empty(node.next);
      case NodeKind::kBytes:
      case NodeKind::kText:
        return grammar_.automata[node.index]->states[0].accept && empty(node.next);
      case NodeKind::kLoop: {
        if (!empty(node.next)) return false;
        if (node.min == 0) return true;
        const Node& body = grammar_.nodes[node.branches[0]];
        if (body.kind == NodeKind::kCall) return empty(grammar_.rules[body.index]);
        return grammar_.automata[body.index]->states[0].accept;
      }
      case NodeKind::kString:
      case NodeKind::kObject:
      case NodeKind::kKeyStart:
      case NodeKind::kKey:
      case NodeKind::kArray:
      case NodeKind::kItem:
        return false;
    }
    return false;
  }

  bool cycle_from(NodeId start, std::vector<std::uint8_t>& state) const {
    std::vector<std::pair<NodeId, std::vector<NodeId>>> path = {{start, reached(start)}};
    state[start] = 1;
    while (!path.empty()) {
      auto& [at, left] = path.back();
      if (left.empty()) {
        state[at] = 2;
        path.pop_back();
        continue;
      }
      const NodeId next = left.back();
      left.pop_back();
      if (state[next] == 1) return true;
      if (state[next] == 2) continue;
      state[next] = 1;
      path.emplace_back(next, reached(next));
    }
    return false;
  }

  const Grammar& grammar_;
  std::vector<bool> empty_;
};

}  // namespace

Result<Compiled> compile_gbnf(std::string_view text) {
  std::u32string codes;
  if (text.size() > kMostGrammarBytes || !decode_utf8(text, codes)) {
    return Error(ErrorCode::kInvalidArgument, "\"grammar\": it is not UTF-8, or over 1 MiB");
  }
  auto grammar = std::make_shared<Grammar>();
  const Status read = Reader(std::move(codes), *grammar).read();
  if (!read.ok()) return read.error().within("\"grammar\"");
  if (LeftCalls(*grammar).circular()) {
    return Error(ErrorCode::kInvalidArgument,
                 "\"grammar\": a rule calls itself before it takes a character (left recursion); "
                 "write it with a repetition");
  }
  const Status finished = grammar->finish("no text fits it: its rules lead to no end");
  if (!finished.ok()) return finished.error().within("\"grammar\"");
  return Compiled{std::move(grammar), {}};
}

}  // namespace bulkhead::constrain
