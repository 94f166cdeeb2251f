// The endpoints; routes.cpp has a row for each. To add an endpoint, add a row with its handler; if it reads a body,
// add a parser; if it asks a worker, add a message.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "orchestrator/http/access.hpp"
#include "orchestrator/http/answer.hpp"
#include "orchestrator/http/body_reader.hpp"
#include "orchestrator/http/exchange.hpp"
#include "orchestrator/http/key_limits.hpp"
#include "orchestrator/http/questions.hpp"
#include "orchestrator/http/resumable.hpp"

namespace bulkhead::orchestrator {

// What handlers work with.
struct ApiContext {
  AnswerServices services;
  ResumableStreams& streams;
  ApiOptions options;
  std::function<std::size_t()> connection_count = {};
  KeyLimits limits = {};
  std::unique_ptr<BodyReader> bodies = {};
};

struct Route;
struct Conversation;
struct CountedPrompt;
struct EmbeddingRequest;
struct OllamaRequest;
struct RerankRequest;

// A request that has been received completely.
struct Call {
  ApiContext& context;
  const Route& route;
  std::string parameter;  // the text in place of the path's {...}
  HttpRequest request;
  std::shared_ptr<Exchange> exchange;
  // The ticket of a request with a client's key; null if the request has the server's own key. What answers the call
  // takes it. The request counts as in progress as long as an object holds the ticket.
  std::shared_ptr<KeyTicket> ticket;

  std::string_view key_name() const;  // name of the client's key; empty if the client has none
  void respond(HttpResponse response);
  // Counts and logs the request's end, if it is answered in another way than by respond().
  void ended(int status) const;
  // Refuses the request in the form of the route's protocol (Route::refuse).
  void refuse(const ApiError& error);
};

// How a route takes a request's body: the function that parses it, and the one that handles the result. A body that
// can't be parsed is refused.
template <typename Wanted>
struct Takes {
  Parsed<Wanted> (*parse)(std::string_view body);
  void (*handle)(Call call, Wanted wanted);
  // The event loop parses bodies up to this size, and a thread those that are larger.
  static constexpr bool kTranslates = std::is_same_v<Wanted, Conversation> ||
                                      std::is_same_v<Wanted, CountedPrompt> ||
                                      std::is_same_v<Wanted, OllamaRequest>;
  static constexpr std::size_t kMostAtOnce =
      kTranslates ? BodyReader::kLargeToTranslate : BodyReader::kLarge;
};

// Takes<> of each question that a worker answers, plus `Others`.
template <typename Questions, typename... Others>
struct WaysOf;
template <typename... Messages, typename... Others>
struct WaysOf<std::variant<Messages...>, Others...> {
  using Type = std::variant<Others..., Takes<QuestionRequest<Messages>>...>;
};

struct Route {
  enum class Method { kGet, kPost, kDelete };
  // Answers at once, from the head; a HEAD request gets the same answer.
  using AtOnce = HttpResponse (*)(const ApiContext& context, const std::string& parameter);
  // Handles a request that has been received completely, for as long as that takes; does not read its body.
  using Handle = void (*)(Call call);
  using Way = WaysOf<ipc::Question, AtOnce, Handle, Takes<GenerationRequest>, Takes<Conversation>,
                     Takes<CountedPrompt>, Takes<EmbeddingRequest>, Takes<OllamaRequest>,
                     Takes<RerankRequest>, Takes<std::string>, Takes<Worker::Start>>::Type;

  constexpr Route(Method row_method, std::string_view row_path, const char* row_label, Who may_call,
                  RefusalForm form, Way row_way)
      : method(row_method),
        path(row_path),
        label(row_label),
        who(may_call),
        refuse(form),
        way(row_way) {}
  // A row with the body's parser and the handler, which takes the parser's result. With nullptr as the parser, the
  // body is not read.
  template <typename Wanted>
  constexpr Route(Method row_method, std::string_view row_path, const char* row_label, Who may_call,
                  RefusalForm form, Parsed<Wanted> (*parser)(std::string_view),
                  void (*handler)(Call, std::type_identity_t<Wanted>))
      : Route(row_method, row_path, row_label, may_call, form,
              Way(Takes<Wanted>{parser, handler})) {}
  constexpr Route(Method row_method, std::string_view row_path, const char* row_label, Who may_call,
                  RefusalForm form, std::nullptr_t, Handle handler)
      : Route(row_method, row_path, row_label, may_call, form, Way(handler)) {}

  Method method;
  std::string_view path;  // with at most one {...}, which stands for one or more characters
  const char* label;      // for metrics; there is a fixed number of labels, whatever clients send
  Who who;
  RefusalForm refuse;
  Way way;

  // Returns the field in which clients of the route's protocol look for a request's id; null:
  // X-Request-Id.
  const char* second_id_field() const;
  // Null if the route needs the whole request.
  AtOnce answer() const {
    const AtOnce* at_once = std::get_if<AtOnce>(&way);
    return at_once == nullptr ? nullptr : *at_once;
  }
  bool takes(std::string_view method_name) const {
    switch (method) {
      case Method::kGet:
        return method_name == "GET" || (method_name == "HEAD" && answer() != nullptr);
      case Method::kPost:
        return method_name == "POST";
      case Method::kDelete:
        return method_name == "DELETE";
    }
    return false;
  }
};

// Passes the call, whose body is there, to its route's handler, or refuses it if its body can't be parsed.
void handle(Call call);

// Returns the path's route; if there is none, the route whose path has the most parts in common
// with it. Errors at this path have the form of that route.
const Route& nearest_route(std::string_view path);

// The route of a path, and the text in place of its {...}.
struct RouteMatch {
  const Route* route = nullptr;  // null: there is none
  std::string parameter;
  std::string allow;  // the methods that the path allows
};
// Returns the route with this path and method; if there is none, a route with this path. It tolerates extra slashes
// and a missing or doubled /v1, because people easily write base URLs like that.
RouteMatch find_route(std::string_view path, std::string_view method);

}  // namespace bulkhead::orchestrator
