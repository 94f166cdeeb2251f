// Turns the syntax tree of an expression into a term. Each node is compiled with the term of all that follows it, so
// that `$` and a lookahead can refer to the whole rest: they are intersections with that term.
#include "worker/constrain/regex.hpp"

#include "worker/constrain/regex_ast.hpp"

namespace bulkhead::constrain {
namespace {

using Kind = RegexNode::Kind;

// Whether this place is the beginning of the text.
enum class AtStart { kYes, kNo, kMaybe };

bool asserts(const RegexNode& node) {
  if (node.kind == Kind::kStart || node.kind == Kind::kEnd || node.kind == Kind::kAhead)
    return true;
  for (const RegexNode& part : node.parts) {
    if (asserts(part)) return true;
  }
  return false;
}

struct Width {
  bool may_be_zero = true;
  bool is_zero = true;
};

Width width(const RegexNode& node) {
  switch (node.kind) {
    case Kind::kChars:
      return {false, false};
    case Kind::kStart:
    case Kind::kEnd:
    case Kind::kAhead:
      return {true, true};
    case Kind::kRepeat: {
      const Width inner = width(node.parts[0]);
      return {node.min == 0 || inner.may_be_zero, node.max == 0 || inner.is_zero};
    }
    case Kind::kSequence: {
      Width out;
      for (const RegexNode& part : node.parts) {
        const Width inner = width(part);
        out = {out.may_be_zero && inner.may_be_zero, out.is_zero && inner.is_zero};
      }
      return out;
    }
    case Kind::kChoice: {
      Width out{false, true};
      for (const RegexNode& part : node.parts) {
        const Width inner = width(part);
        out = {out.may_be_zero || inner.may_be_zero, out.is_zero && inner.is_zero};
      }
      return out;
    }
  }
  return {};
}

class Compiler {
 public:
  explicit Compiler(Terms& terms) : terms_(terms) {}

  Result<TermId> compile(const RegexNode& node, AtStart at, TermId rest) {
    switch (node.kind) {
      case Kind::kChars:
        return terms_.cat(terms_.chars(node.ranges), rest);
      case Kind::kStart:
        if (at == AtStart::kMaybe) {
          return Error(ErrorCode::kUnsupported,
                       "a \"^\" after what may be empty can't be enforced");
        }
        return at == AtStart::kYes ? rest : terms_.nothing();
      case Kind::kEnd: {
        std::vector<TermId> ends = {terms_.empty()};
        if (node.before_line_end) ends.push_back(terms_.text(U"\n"));
        return terms_.both({rest, terms_.either(std::move(ends))});
      }
      case Kind::kAhead: {
        BULKHEAD_TRY(TermId inner, compile(node.parts[0], at, terms_.anything()));
        return terms_.both({rest, node.negative ? terms_.negate(inner) : inner});
      }
      case Kind::kSequence:
        return sequence(node, at, rest);
      case Kind::kChoice: {
        const bool apart = asserts(node);
        std::vector<TermId> ways;
        for (const RegexNode& part : node.parts) {
          BULKHEAD_TRY(TermId way, compile(part, at, apart ? rest : terms_.empty()));
          ways.push_back(way);
        }
        const TermId out = terms_.either(std::move(ways));
        return apart ? out : terms_.cat(out, rest);
      }
      case Kind::kRepeat:
        return repeat(node, at, rest);
    }
    return terms_.nothing();
  }

 private:
  Result<TermId> sequence(const RegexNode& node, AtStart at, TermId rest) {
    std::vector<AtStart> starts;
    for (const RegexNode& part : node.parts) {
      starts.push_back(at);
      const Width taken = width(part);
      if (taken.is_zero || at == AtStart::kNo) continue;
      at = taken.may_be_zero ? AtStart::kMaybe : AtStart::kNo;
    }
    for (std::size_t i = node.parts.size(); i-- > 0;) {
      BULKHEAD_TRY(rest, compile(node.parts[i], starts[i], rest));
    }
    return rest;
  }

  Result<TermId> repeat(const RegexNode& node, AtStart at, TermId rest) {
    const RegexNode& inner = node.parts[0];
    if (!asserts(inner)) {
      BULKHEAD_TRY(TermId one, compile(inner, AtStart::kNo, terms_.empty()));
      return terms_.cat(terms_.repeat(one, node.min, node.max), rest);
    }
    if (node.max > 1) {
      return Error(ErrorCode::kUnsupported,
                   "an anchor or lookahead inside a repetition can't be enforced");
    }
    if (node.max == 0) return rest;
    BULKHEAD_TRY(TermId one, compile(inner, at, rest));
    return node.min == 0 ? terms_.either({one, rest}) : one;
  }

  Terms& terms_;
};

}  // namespace

Result<TermId> read_regex(Terms& terms, std::string_view pattern, Match match, Reading reading) {
  BULKHEAD_TRY(const RegexNode root, parse_regex(pattern, reading));
  Compiler compiler(terms);
  if (match == Match::kWhole) return compiler.compile(root, AtStart::kYes, terms.empty());
  BULKHEAD_TRY(const TermId first, compiler.compile(root, AtStart::kYes, terms.anything()));
  BULKHEAD_TRY(const TermId later, compiler.compile(root, AtStart::kNo, terms.anything()));
  const TermId some = terms.repeat(terms.chars({{0, kLastCodePoint}}), 1, kUnbounded);
  return terms.either({first, terms.cat(some, later)});
}

Result<DfaPtr> regex_automaton(std::string_view pattern, Match match, Reading reading) {
  Terms terms;
  BULKHEAD_TRY(const TermId term, read_regex(terms, pattern, match, reading));
  return terms.automaton(term);
}

}  // namespace bulkhead::constrain
