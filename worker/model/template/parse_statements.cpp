// Parses statements: {% ... %}, one row for each tag.
#include <algorithm>
#include <initializer_list>

#include "worker/model/template/native.hpp"
#include "worker/model/template/parser_state.hpp"
#include "worker/model/template/template_error.hpp"

namespace bulkhead::jinja {
namespace {

using StatementPtr = std::unique_ptr<Statement>;

class StatementParser {
 public:
  explicit StatementParser(std::string_view source)
      : stream_(tokenize(source)), expressions_(stream_, names_) {}

  Program run() {
    Program program;
    program.body = body({});
    if (!expressions_.unknown().empty()) {
      const UnknownName& first = expressions_.unknown().front();
      throw TemplateError(TemplateError::Kind::kSyntax, first.message, first.line);
    }
    program.names = names_.take();
    return program;
  }

 private:
  using Parse = StatementPtr (StatementParser::*)();
  struct TagRow {
    std::string_view name;
    Parse parse;
  };

  StatementPtr make(StatementKind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = tag_line_;
    return statement;
  }

  void end_tag() {
    if (!stream_.at(TokenKind::kBlockEnd))
      stream_.wrong("expected '%}', got " + stream_.describe());
    stream_.take();
  }

  // Parses statements up to {% NAME where NAME is in `ends`; that tag stays current. Without ends, parses up to the
  // template's end.
  Body body(std::initializer_list<std::string_view> ends) {
    if (++depth_ > kMaxStatementDepth)
      throw TemplateError(TemplateError::Kind::kLimit,
                          "nests tags more than " + std::to_string(kMaxStatementDepth) + " deep",
                          stream_.line());
    Body statements;
    const std::uint32_t opened = tag_line_;
    const std::string tag = tag_;
    for (;;) {
      if (stream_.at(TokenKind::kEnd)) {
        if (ends.size() > 0)
          throw TemplateError(
              TemplateError::Kind::kSyntax,
              "{% " + tag + " %} never ends; write {% " + std::string(*(ends.end() - 1)) + " %}",
              opened);
        break;
      }
      if (stream_.at(TokenKind::kData)) {
        StatementPtr text = make(StatementKind::kText);
        text->line = stream_.line();
        text->text = Text(stream_.take().text, Origin::kTemplate);
        statements.push_back(std::move(text));
      } else if (stream_.at(TokenKind::kVariableBegin)) {
        statements.push_back(output());
      } else {
        stream_.take();  // {%
        if (std::any_of(ends.begin(), ends.end(),
                        [this](std::string_view end) { return stream_.at_name(end); }))
          break;
        statements.push_back(tag_statement());
      }
    }
    --depth_;
    return statements;
  }

  // Parses a body up to {% END %}, and that tag.
  Body body_to(std::string_view end) {
    Body statements = body({end});
    stream_.take();
    end_tag();
    return statements;
  }

  StatementPtr output() {
    StatementPtr statement = make(StatementKind::kOutput);
    statement->line = stream_.take().line;
    statement->expr = expressions_.tuple();
    if (!stream_.at(TokenKind::kVariableEnd))
      stream_.wrong("expected '}}', got " + stream_.describe());
    stream_.take();
    return statement;
  }

  StatementPtr tag_statement() {
    static constexpr TagRow kTags[] = {
        {"for", &StatementParser::for_tag},
        {"if", &StatementParser::if_tag},
        {"set", &StatementParser::set_tag},
        {"macro", &StatementParser::macro_tag},
        {"call", &StatementParser::call_tag},
        {"filter", &StatementParser::filter_tag},
        {"with", &StatementParser::with_tag},
        {"block", &StatementParser::block_tag},
        {"autoescape", &StatementParser::autoescape_tag},
        {"generation", &StatementParser::generation_tag},
        {"do", &StatementParser::do_tag},
        {"break", &StatementParser::break_tag},
        {"continue", &StatementParser::continue_tag},
    };
    tag_line_ = stream_.line();
    tag_ = stream_.expect_name();
    const auto* row = std::find_if(std::begin(kTags), std::end(kTags),
                                   [this](const TagRow& each) { return each.name == tag_; });
    if (row != std::end(kTags)) return (this->*row->parse)();
    if (tag_ == "include" || tag_ == "import" || tag_ == "from" || tag_ == "extends")
      stream_.wrong(
          "{% " + tag_ +
          " %} reads another template, and a chat template has none; write its text here");
    if (tag_.starts_with("end") || tag_ == "else" || tag_ == "elif")
      stream_.wrong("{% " + tag_ + " %} stands where nothing that it could belong to is open");
    stream_.wrong("there is no tag {% " + tag_ + " %}");
  }

  StatementPtr for_tag() {
    StatementPtr statement = make(StatementKind::kFor);
    statement->target = expressions_.target(false, "in");
    if (!stream_.skip_name("in")) stream_.wrong("expected 'in', got " + stream_.describe());
    statement->expr = expressions_.tuple(false);
    if (stream_.skip_name("if")) statement->condition = expressions_.expression();
    statement->recursive = stream_.skip_name("recursive");
    end_tag();
    const bool was_in_loop = std::exchange(in_loop_, true);
    statement->body = body({"else", "endfor"});
    in_loop_ = was_in_loop;
    if (stream_.skip_name("else")) {
      end_tag();
      statement->otherwise = body({"endfor"});
    }
    stream_.take();
    end_tag();
    return statement;
  }

  StatementPtr if_tag() {
    StatementPtr statement = make(StatementKind::kIf);
    const std::size_t unknown_before = expressions_.unknown().size();
    for (;;) {
      Branch branch;
      branch.condition = expressions_.tuple(false);
      end_tag();
      branch.body = body({"elif", "else", "endif"});
      statement->branches.push_back(std::move(branch));
      if (!stream_.skip_name("elif")) break;
    }
    if (stream_.skip_name("else")) {
      end_tag();
      statement->otherwise = body({"endif"});
    }
    stream_.take();
    end_tag();
    expressions_.unknown().resize(unknown_before);
    return statement;
  }

  StatementPtr set_tag() {
    StatementPtr statement = make(StatementKind::kSet);
    statement->target = expressions_.target(true);
    if (stream_.skip_operator("=")) {
      statement->expr = expressions_.tuple();
      end_tag();
      return statement;
    }
    statement->kind = StatementKind::kSetBlock;
    if (statement->target.form == Target::Form::kTuple)
      stream_.wrong("a {% set %} block has one name to assign to");
    if (stream_.skip_operator("|")) statement->expr = expressions_.filters_of_block();
    end_tag();
    statement->body = body_to("endset");
    return statement;
  }

  // Parses (a, b=1): the parameters of a macro or of a caller.
  void signature(MacroNode& macro) {
    stream_.expect_operator("(");
    while (!stream_.at_operator(")")) {
      if (!macro.parameters.empty()) stream_.expect_operator(",");
      macro.parameters.push_back(expressions_.single_target(false).symbol);
      if (stream_.skip_operator("="))
        macro.defaults.push_back(expressions_.expression());
      else if (!macro.defaults.empty())
        stream_.wrong("a parameter without a default follows one with a default");
    }
    stream_.expect_operator(")");
  }

  void macro_body(MacroNode& macro, std::string_view end) {
    const bool was_in_loop = std::exchange(in_loop_, false);
    const MacroNames outer = std::exchange(expressions_.macro_names(), {});
    macro.body = body_to(end);
    macro.uses = std::exchange(expressions_.macro_names(), outer);
    in_loop_ = was_in_loop;
  }

  StatementPtr macro_tag() {
    StatementPtr statement = make(StatementKind::kMacro);
    statement->macro = std::make_unique<MacroNode>();
    MacroNode& macro = *statement->macro;
    macro.symbol = expressions_.single_target(false).symbol;
    macro.name = names_.name(macro.symbol);
    signature(macro);
    end_tag();
    macro_body(macro, "endmacro");
    return statement;
  }

  StatementPtr call_tag() {
    StatementPtr statement = make(StatementKind::kCallBlock);
    statement->macro = std::make_unique<MacroNode>();
    statement->macro->name = "caller";
    if (stream_.at_operator("(")) signature(*statement->macro);
    statement->expr = expressions_.expression();
    if (statement->expr->kind != ExprKind::kCall)
      stream_.wrong("{% call %} needs a call, as {% call name(arguments) %}");
    end_tag();
    macro_body(*statement->macro, "endcall");
    return statement;
  }

  StatementPtr filter_tag() {
    StatementPtr statement = make(StatementKind::kFilterBlock);
    statement->expr = expressions_.filters_of_block();
    end_tag();
    statement->body = body_to("endfilter");
    return statement;
  }

  StatementPtr with_tag() {
    StatementPtr statement = make(StatementKind::kWith);
    while (!stream_.at(TokenKind::kBlockEnd)) {
      if (!statement->assignments.empty()) stream_.expect_operator(",");
      Target target = expressions_.single_target(false);
      stream_.expect_operator("=");
      statement->assignments.emplace_back(std::move(target), expressions_.expression());
    }
    end_tag();
    statement->body = body_to("endwith");
    return statement;
  }

  StatementPtr block_tag() {
    StatementPtr statement = make(StatementKind::kScope);
    const std::string name = stream_.expect_name();
    while (stream_.skip_name("scoped") || stream_.skip_name("required")) {
    }
    end_tag();
    statement->body = body({"endblock"});
    stream_.take();
    stream_.skip_name(name);
    end_tag();
    return statement;
  }

  StatementPtr autoescape_tag() {
    StatementPtr statement = make(StatementKind::kScope);
    const ExprPtr value = expressions_.expression();
    const bool* on = value->kind == ExprKind::kConstant ? value->constant.as_bool() : nullptr;
    if (on == nullptr || *on)
      stream_.wrong("{% autoescape %} is for HTML; a prompt needs {% autoescape false %} or none");
    end_tag();
    statement->body = body_to("endautoescape");
    return statement;
  }

  StatementPtr generation_tag() {
    StatementPtr statement = make(StatementKind::kScope);
    end_tag();
    statement->body = body_to("endgeneration");
    return statement;
  }

  StatementPtr do_tag() {
    StatementPtr statement = make(StatementKind::kDo);
    statement->expr = expressions_.tuple();
    end_tag();
    return statement;
  }

  StatementPtr loop_control(StatementKind kind) {
    if (!in_loop_) stream_.wrong("{% " + tag_ + " %} stands in no loop");
    end_tag();
    return make(kind);
  }
  StatementPtr break_tag() { return loop_control(StatementKind::kBreak); }
  StatementPtr continue_tag() { return loop_control(StatementKind::kContinue); }

  TokenStream stream_;
  Names names_;
  ExpressionParser expressions_;
  std::uint32_t tag_line_ = 1;
  std::string tag_;
  int depth_ = 0;
  bool in_loop_ = false;
};

}  // namespace

Program parse_program(std::string_view source) {
  if (source.size() > kMaxSourceBytes)
    throw TemplateError(TemplateError::Kind::kLimit, "the template is longer than 256 KiB");
  return StatementParser(source).run();
}

}  // namespace bulkhead::jinja
