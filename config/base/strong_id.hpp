// Integer ids that the compiler keeps apart: a RequestId is not a SequenceId.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace bulkhead {

template <typename Tag, typename Representation = std::uint64_t>
struct StrongId {
  Representation value{};
  auto operator<=>(const StrongId&) const = default;
};

// The daemon's number for a request, unique for the life of the daemon. 0 means none.
using RequestId = StrongId<struct RequestIdTag>;

}  // namespace bulkhead

template <typename Tag, typename Representation>
struct std::hash<bulkhead::StrongId<Tag, Representation>> {
  std::size_t operator()(bulkhead::StrongId<Tag, Representation> id) const noexcept {
    return std::hash<Representation>{}(id.value);
  }
};
