// Parses a call's body into what its route's handler takes: on the event loop if that takes little time, otherwise in a
// thread.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "orchestrator/http/body_reader.hpp"
#include "orchestrator/http/routes.hpp"
#include "orchestrator/http/stored_items.hpp"

namespace bulkhead::orchestrator {

template <typename Wanted>
void hand_on(Call call, const Takes<Wanted>& takes, Parsed<Wanted> parsed) {
  if (const auto* error = std::get_if<ApiError>(&parsed)) return call.refuse(*error);
  takes.handle(std::move(call), std::get<Wanted>(std::move(parsed)));
}

// Parses a body on the event loop. Returns nothing if that would take too long, because the body is large or names long
// stored items.
template <typename Wanted>
std::optional<Parsed<Wanted>> parse_at_once(std::string_view body, const Takes<Wanted>& takes) {
  constexpr std::size_t kMost = Takes<Wanted>::kMostAtOnce;
  if (body.size() > kMost) return std::nullopt;
  const ShortItems allowed(kMost - body.size());
  try {
    return takes.parse(body);
  } catch (const ItemsTooLong&) {
    return std::nullopt;
  }
}

// Parses the call's body and hands the result to the route's handler: at once, or, if that takes long, when a thread
// has parsed it and the client is still there. So a parser must be a function of the body and of stored_items().
template <typename Wanted>
void read_body(Call call, const Takes<Wanted>& takes) {
  if (auto parsed = parse_at_once(call.request.body, takes))
    return hand_on(std::move(call), takes, *std::move(parsed));
  struct Reading {
    Call call;
    std::optional<Parsed<Wanted>> parsed = std::nullopt;
    std::exception_ptr exception = nullptr;  // what ended the parser, if nothing was parsed
    bool lost = false;
  };
  auto reading = std::make_shared<Reading>(Reading{std::move(call)});
  reading->call.exchange->on_lost = [lost = std::weak_ptr(reading)](Exchange::Lost) {
    if (const auto there = lost.lock()) there->lost = true;
  };
  reading->call.context.bodies->read(
      [&parse_into = *reading, parse = takes.parse] {
        try {
          parse_into.parsed.emplace(parse(parse_into.call.request.body));
        } catch (const std::exception&) {
          parse_into.exception = std::current_exception();
        }
      },
      [reading, takes] {
        if (reading->lost) return reading->call.ended(499);
        const std::shared_ptr<Exchange> exchange = reading->call.exchange;
        exchange->on_lost = nullptr;
        try {
          if (reading->parsed.has_value())
            return hand_on(std::move(reading->call), takes, *std::move(reading->parsed));
        } catch (const std::exception&) {  // nobody else would tell the client, or end the answer
          reading->exception = std::current_exception();
          reading->call.exchange = exchange;
          if (const auto lost = std::exchange(exchange->on_lost, {})) lost(Exchange::Lost::kHungUp);
        }
        reading->call.refuse(why_not_read(reading->exception));
      });
}

}  // namespace bulkhead::orchestrator
