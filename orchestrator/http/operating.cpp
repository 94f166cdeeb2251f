#include "orchestrator/http/operating.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "config/base/log.hpp"
#include "config/config.hpp"
#include "orchestrator/http/describe.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/http/request_fields.hpp"
#include "orchestrator/supervisor/worker_log.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

std::string compact_text(const json& body) {
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

HttpResponse json_response(int status, const json& body) {
  HttpResponse response;
  response.status = status;
  response.body = compact_text(body);
  return response;
}

namespace {

HttpResponse no_worker(const std::string& name) {
  return refusal(kWorkerNotFound,
                 fmt::format("There is no worker '{}'; /v1/workers lists them.", name));
}

}  // namespace

// ---- the present state ----

HttpResponse get_workers(const ApiContext& context, const std::string&) {
  HttpResponse response;
  response.body = "[";
  describe_workers(context.services.router, context.streams.disk(), [&](json worker) {
    worker["kill_allowed"] = context.options.server.allow_kill;
    if (response.body.size() > 1) response.body += ',';
    response.body += compact_text(worker);
  });
  response.body += ']';
  return response;
}

// Lists the requests in progress, the oldest first.
HttpResponse get_requests(const ApiContext& context, const std::string&) {
  std::vector<std::shared_ptr<const Answer>> answers = context.streams.unfinished();
  answers.insert(answers.end(), context.services.held.begin(), context.services.held.end());
  std::ranges::sort(answers, {}, [](const auto& answer) { return answer->began(); });
  json list = json::array();
  for (const auto& answer : answers)
    list.push_back(describe_answer(context.services.router, *answer));
  return json_response(200, list);
}

// Lists the last lines that this worker, or an earlier one of its name, wrote, and the daemon's log
// lines about them.
HttpResponse get_worker_log(const ApiContext& context, const std::string& name) {
  Router& router = context.services.router;
  const std::vector<WorkerLogs::Line> lines = WorkerLogs::instance().lines(name);
  if (lines.empty() && router.find_worker(name) == nullptr && router.find_spare(name) == nullptr) {
    return no_worker(name);
  }
  json list = json::array();
  for (const WorkerLogs::Line& line : lines)
    list.push_back({{"number", line.number}, {"time", line.time}, {"text", line.text}});
  return json_response(200, {{"worker", name}, {"lines", std::move(list)}});
}

HttpResponse get_crashes(const ApiContext& context, const std::string&) {
  return json_response(200, describe_crashes(context.services.router));
}

HttpResponse get_settings(const ApiContext& context, const std::string&) {
  HttpResponse response;
  response.content_type = "application/yaml";
  response.body = config::settings_yaml(context.services.router.settings());
  return response;
}

namespace {

// ---- actions on a worker ----

enum class Action { kDrain, kRestart, kProfile, kKill };

// Orders the action from the worker. Returns null if the worker does it. Otherwise returns the word
// that ends the error "only a ready one can be ...", such as "drained".
const char* refused_by(Router& router, Worker& worker, Action action, Worker::Start start) {
  switch (action) {
    case Action::kDrain:
      return worker.drain() ? nullptr : "drained";
    case Action::kProfile:
      return worker.profile() ? nullptr : "profiled";
    case Action::kKill:
      return worker.kill_process() ? nullptr : "killed";
    case Action::kRestart:
      router.restart(worker, start);
      return nullptr;
  }
  return nullptr;
}

void act_on_spare(Call& call, Spare& spare, Action action, Worker::Start start) {
  const std::string& name = call.parameter;
  if (action != Action::kRestart) {
    return call.respond(refusal(
        kWorkerNotReady,
        fmt::format("The worker '{}' stands by and has no request; it can only be restarted.",
                    name)));
  }
  if (start == Worker::Start::kCold) {
    return call.respond(refusal(
        kWorkerNotReady,
        fmt::format("The worker '{}' stands by and shares the memory that a cold start drops with "
                    "the worker that serves; restart that one.",
                    name)));
  }
  spdlog::info("worker {}: restart requested", name);
  spare.restart();
  call.respond(json_response(202, {{"name", name}, {"state", to_string(spare.state())}}));
}

void act_on_worker(Call call, Action action, Worker::Start start = Worker::Start::kWarm) {
  Router& router = call.context.services.router;
  const std::string& name = call.parameter;
  if (action == Action::kKill && !call.context.options.server.allow_kill) {
    return call.respond(refusal(
        kNotAllowed, "Workers may not be killed over HTTP here (server.allow_kill is false)."));
  }
  if (Spare* const spare = router.find_spare(name); spare != nullptr)
    return act_on_spare(call, *spare, action, start);
  Worker* const worker = router.find_worker(name);
  if (worker == nullptr) {
    return call.respond(no_worker(name));
  }
  if (action == Action::kRestart && worker->state() == WorkerState::kUnloaded) {
    return call.respond(refusal(
        kWorkerNotReady,
        fmt::format("The worker '{}' is unloaded; it starts when its model is loaded.", name)));
  }
  if (const char* const done = refused_by(router, *worker, action, start); done != nullptr) {
    return call.respond(
        refusal(kWorkerNotReady, fmt::format("The worker '{}' is {}; only a ready one can be {}.",
                                             name, to_string(worker->state()), done)));
  }
  spdlog::info("worker {}: {}{} requested", name, start == Worker::Start::kCold ? "cold " : "",
               call.request.path.substr(call.request.path.rfind('/') + 1));
  call.respond(json_response(202, describe_worker(router, *worker, call.context.streams.disk())));
}

// ---- which models are loaded ----

void answer_about_model(Call& call, const Result<std::size_t>& model) {
  const Router& router = call.context.services.router;
  if (model.ok()) {
    spdlog::info("model {}: {} requested", router.models()[*model].id,
                 call.request.path.substr(call.request.path.rfind('/') + 1));
    return call.respond(json_response(202, describe_model(router, router.models()[*model])));
  }
  const std::string& why = model.error().message();
  if (model.error().code() == ErrorCode::kUnavailable)
    return call.refuse(to_api_error({ipc::FailureCode::kUnavailable, why, "model"}));
  const bool unknown = model.error().code() == ErrorCode::kNotFound;
  call.refuse(api_error(unknown ? kModelNotFound : kModelTooLarge, why, "model"));
}

// Handles {"model": NAME} and answers with the model's description at that moment. The
// description's state says whether the model is loaded, or how far its loading is.
template <Result<std::size_t> (Router::*act)(const std::string&)>
void act_on_model(Call call, const std::string& name) {
  Router& router = call.context.services.router;
  if (act != &Router::load || router.find_model(name) != nullptr)
    return answer_about_model(call, (router.*act)(name));
  router.add_from_folder(name, [&router, call](Result<std::size_t> added) mutable {
    answer_about_model(call, added.ok() ? router.load(router.models()[*added].id) : added);
  });
}

}  // namespace

// The body of a restart may be {"cold": true}. The parser refuses other members, because their sender may mean
// to keep something that a cold start drops.
Parsed<Worker::Start> parse_restart(std::string_view body) {
  if (body.empty()) return Worker::Start::kWarm;
  Parsed<json> parsed = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  const json& object = std::get<json>(parsed);
  for (const auto& [name, value] : object.items()) {
    if (name != "cold") return invalid("A restart takes only 'cold', not '" + name + "'.", name);
  }
  Fields fields(object);
  const bool cold = fields.boolean("cold", false);
  if (!fields.ok()) return fields.error();
  return cold ? Worker::Start::kCold : Worker::Start::kWarm;
}

void drain_worker(Call call) {
  act_on_worker(std::move(call), Action::kDrain);
}
void restart_worker(Call call, Worker::Start start) {
  act_on_worker(std::move(call), Action::kRestart, start);
}
void profile_worker(Call call) {
  act_on_worker(std::move(call), Action::kProfile);
}
void kill_worker(Call call) {
  act_on_worker(std::move(call), Action::kKill);
}

void load_model(Call call, std::string name) {
  act_on_model<&Router::load>(std::move(call), name);
}
void unload_model(Call call, std::string name) {
  act_on_model<&Router::unload>(std::move(call), name);
}

}  // namespace bulkhead::orchestrator
