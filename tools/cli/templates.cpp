// `bulkhead apply-template`: prints what a chat template makes of a request.

#include <cstdio>

#include "tools/cli/commands.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/template/chat.hpp"
#include "worker/model/template_file.hpp"

namespace bulkhead::cli {
namespace {

// Reads "2026-01-15 12:00:00", or the same with a T. An empty text means the present time.
Result<std::tm> read_time(const std::string& text) {
  std::tm time = {};
  if (text.empty()) {
    const std::time_t now = std::time(nullptr);
    ::localtime_r(&now, &time);
    return time;
  }
  std::string plain = text;
  if (plain.size() > 10 && plain[10] == 'T') plain[10] = ' ';
  const char* const end = ::strptime(plain.c_str(), "%Y-%m-%d %H:%M:%S", &time);
  std::tm real = time;  // of 31 February timegm makes a day in March
  if (end == nullptr || *end != '\0' || ::timegm(&real) == -1 || real.tm_mday != time.tm_mday)
    return Error(ErrorCode::kInvalidArgument,
                 "--now " + text + " is not a time; write it as \"2026-01-15 12:00:00\"");
  return time;
}

Result<jinja::Chat> load_chat(const ApplyTemplateOptions& options) {
  if (options.model.empty()) {
    BULKHEAD_TRY(const std::string text, read_file(options.template_file));
    return jinja::Chat::load(text, options.bos.value_or(""), options.eos.value_or(""));
  }
  BULKHEAD_TRY(const auto file, model::GgufFile::open(options.model));
  BULKHEAD_TRY(model::TemplateText text, model::template_text(*file));
  if (text.source.empty())
    return Error(ErrorCode::kUnsupported,
                 options.model + " has no chat template; give one by --template");
  return jinja::Chat::load(text.source, options.bos.value_or(text.bos),
                           options.eos.value_or(text.eos));
}

// Says whether the request is wrong whatever the template is.
bool wrong_for_all(const jinja::ChatRequest& request, const Error& error) {
  const Result<jinja::Chat> empty = jinja::Chat::load("", "", "");
  if (!empty.ok()) return false;
  const Result<jinja::ChatPrompt> prompt = empty->render(request);
  return !prompt.ok() && prompt.error().message() == error.message();
}

}  // namespace

int run_apply_template(const ApplyTemplateOptions& options) {
  const Result<std::tm> now = read_time(options.now);
  if (!now.ok()) return fail(now.error());
  const Result<jinja::Chat> chat = load_chat(options);
  if (!chat.ok()) return fail(chat.error());
  const Result<std::string> request = read_stdin();
  if (!request.ok()) return fail(request.error());
  const jinja::ChatRequest given = {*request, *now, options.as_is};
  const Result<jinja::ChatPrompt> prompt = chat.value().render(given);
  if (!prompt.ok()) {
    const Error& error = prompt.error();
    // The template's own message is printed without additions, so that a script can compare it.
    if (error.code() != jinja::kRaisedCode || wrong_for_all(given, error)) return fail(error);
    std::fprintf(stderr, "%s\n", prompt.error().message().c_str());
    return 1;
  }
  for (const std::string& warning : prompt.value().warnings)
    std::fprintf(stderr, "bulkhead: warning: %s\n", warning.c_str());
  return put(prompt.value().text()) ? 0 : 1;
}

}  // namespace bulkhead::cli
