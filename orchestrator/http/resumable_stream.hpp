// One resumable stream: its events, its reader, and its records in the journal on disk. resumable.hpp says what
// clients may rely on.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/http/answer.hpp"
#include "orchestrator/http/choice.hpp"
#include "orchestrator/http/resumable.hpp"
#include "orchestrator/journal/disk_journal.hpp"

namespace bulkhead::orchestrator {

class ResumableStream final : public Answer {
 public:
  ResumableStream(ResumableStreams& owner, BegunRequest begun);
  ~ResumableStream() override;

  std::size_t bytes() const { return events_.size(); }
  bool being_read() const { return reader_ != nullptr; }
  std::size_t known_events() const { return durable_; }

  // kResourceExhausted: the request is too large for the journal on disk.
  Status start(std::size_t model, std::shared_ptr<Exchange> exchange);
  // Restores the state from the records. Sends nothing to a worker and writes nothing to the disk.
  void restore(DiskRequest& from);
  // Hands an unfinished stream to the workers. Without `model`, its model is no longer served. Without `ticket`, no
  // client's key began it.
  void go_on(std::optional<std::size_t> model, DiskRequest& from,
             std::shared_ptr<KeyTicket> ticket);
  void expire_after(std::chrono::seconds time);
  // Makes `exchange` the reader, from that event on.
  void attach(std::shared_ptr<Exchange> exchange, std::size_t first_event);
  // Sends the reader what is durable and fits.
  void pump();
  void drop();

 private:
  void on_warnings(RequestId, std::span<const std::string> warnings) override;
  void on_accepted(RequestId, std::span<const ipc::TokenId> prompt_tokens) override;
  void on_tokens(const ipc::SequenceTokensView& view) override;
  void on_finished(RequestId, const ipc::Finished& finished) override;
  void on_failed(RequestId, const Failure& failure) override;
  void cancel() override;
  void tell(const ApiError& error) override;
  void tell_exception() override;
  void ended() override;
  void lost(Exchange::Lost how) override;

  // Adds an event whole, or throws. Afterwards there is memory for `room` bytes of further events.
  void add_event(std::string_view event, std::size_t room);
  // Counts the memory of the events. Returns false if the streams' budget has no room.
  bool hold_events();
  void render_finished(const ipc::Finished& finished);
  void render_failed(std::string_view event);
  Usage usage() const;
  Facts facts() const override { return {begun_.id, begun_.model, true, 1, usage(), recovered_}; }
  std::vector<RequestId> unfinished() const override { return {request_}; }

  void keep(RecordType type, const Result<std::string>& payload);
  void keep_tokens(const ipc::SequenceTokensView& view, std::uint32_t first_index);
  void made_durable(std::size_t events);
  void tell_worker();

  void wait_for_reader();
  void expired();
  void give_up(const char* why);

  ResumableStreams& owner_;
  BegunRequest begun_;
  AnswerHead head_;
  Choice choice_;
  Choice::Emit emit_;
  Timer expiry_, full_reader_;
  std::uint64_t key_ = 0;  // in the journal on disk
  RequestId request_;      // 0 if no worker has it or will get it
  std::string made_by_;    // as in the journal

  std::size_t held_ = 0;           // this stream's share of the streams' budget
  std::string events_;             // all of them
  std::vector<std::size_t> ends_;  // the end of each event in events_
  std::size_t durable_ = 0;        // events that may be sent
  bool announced_ = false;         // durably accepted: a client may learn its id
  bool failed_ = false;
  bool given_up_ = false;  // it has no end, so it can't be read again
  bool recovered_ = false;

  std::shared_ptr<Exchange> reader_;
  bool streaming_ = false;      // the reader has got the head
  std::size_t next_event_ = 0;  // the reader's next event
  Clock::time_point last_tokens_;
};

}  // namespace bulkhead::orchestrator
