#include "worker/engine/state_book.hpp"

#include <algorithm>
#include <utility>

namespace bulkhead::engine {

StateBook::StateBook(std::uint32_t slots, std::uint32_t own, std::uint32_t pages)
    : all_(slots), slots_of_(slots > 0 ? pages : 0, kNoState), most_(slots - std::min(slots, own)) {
  free_.reserve(slots);
  for (StateSlot slot = slots; slot > 0; --slot)
    free_.push_back(slot - 1);
}

StateSlot StateBook::take_free() {
  const StateSlot slot = free_.back();
  free_.pop_back();
  return slot;
}

StateSlot StateBook::lend() {
  return take_free();
}

// Makes room for one more snapshot. Returns false if all snapshots are held.
bool StateBook::make_room() {
  if (snapshots_ + making_ < most_) return true;
  StateSlot oldest = kNoState;
  for (StateSlot slot = 0; slot < all_.size(); ++slot) {
    const Slot& each = all_[slot];
    if (each.page == PrefixIndex::kRoot || each.holds > 0) continue;
    if (oldest == kNoState || each.used < all_[oldest].used) oldest = slot;
  }
  if (oldest == kNoState) return false;
  ++evictions_;
  forget(oldest);
  return true;
}

StateSlot StateBook::lend_for_saving() {
  if (!make_room()) return kNoState;
  ++making_;
  const StateSlot slot = take_free();
  all_[slot].saving = true;
  return slot;
}

void StateBook::give_back(StateSlot slot) {
  if (std::exchange(all_[slot].saving, false)) --making_;
  free_.push_back(slot);
}

std::uint64_t StateBook::enter(PageIndex page, StateSlot slot) {
  if (has(page)) {
    give_back(slot);
    Slot& known = all_[slots_of_[page]];
    known.used = ++clock_;
    known.number = 0;
    return 0;
  }
  --making_;
  ++snapshots_;
  Slot& made = all_[slot];
  made.saving = false;
  made.page = page;
  made.number = made.used = ++clock_;
  slots_of_[page] = slot;
  if (ledger_ != nullptr) ledger_->saved({slot, page});
  return made.number;
}

std::uint64_t StateBook::enter_lent(PageIndex page, StateSlot slot) {
  if (has(page) || !make_room()) return 0;
  ++making_;
  return enter(page, slot);
}

StateSlot StateBook::use(PageIndex page) {
  const StateSlot slot = slots_of_[page];
  all_[slot].used = ++clock_;
  all_[slot].number = 0;
  if (ledger_ != nullptr) ledger_->used(slot);
  return slot;
}

void StateBook::drop(PageIndex page, std::uint64_t number) {
  if (number == 0 || !has(page)) return;
  const StateSlot slot = slots_of_[page];
  if (all_[slot].number == number && all_[slot].holds == 0) forget(slot);
}

void StateBook::left(PageIndex page) {
  if (page < slots_of_.size() && has(page)) forget(slots_of_[page]);
}

bool StateBook::leave_out(StateSlot slot) {
  const auto place = std::find(free_.begin(), free_.end(), slot);
  if (place == free_.end() || snapshots_ + making_ >= most_) return false;
  free_.erase(place);
  --most_;
  ++left_out_;
  return true;
}

void StateBook::forget(StateSlot slot) {
  Slot& gone = all_[slot];
  slots_of_[gone.page] = kNoState;
  gone.page = PrefixIndex::kRoot;
  --snapshots_;
  if (ledger_ != nullptr) ledger_->overwritten(slot);
  free_.push_back(slot);
}

bool StateBook::adopt(PageIndex page, StateSlot slot) {
  const auto place = std::find(free_.begin(), free_.end(), slot);
  if (place == free_.end() || page >= slots_of_.size() || has(page) || snapshots_ >= most_)
    return false;
  free_.erase(place);
  ++snapshots_;
  all_[slot].page = page;
  all_[slot].used = ++clock_;
  slots_of_[page] = slot;
  return true;
}

}  // namespace bulkhead::engine
