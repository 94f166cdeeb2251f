// The protocol between the daemon and `bulkhead-worker --watch-nvidia LIBRARY`.
//
// To ask for the figures, the daemon writes one byte to the process's stdin. The process answers on its stdout
// with lines of four words, KIND ADDRESS WORD VALUE:
//
//     temperature 0000:01:00.0 gpu 61          WORD is a sensor; degrees Celsius
//     slowed 0000:01:00.0 heat 0               WORD is a reason of kSlowedBy; 1: it slows the device
//     memory 0000:01:00.0 used 1048576         used or total; bytes
//     end - - 0                                this answer is complete
//     xid 0000:01:00.0 79 1                    at any time: an error of the device, WORD is its number
//     failed - TEXT 0                          why the process ends; ~ stands for a space
//
// A figure that the driver does not have is left out. The process ends when its stdin does.
#pragma once

#include <array>
#include <string_view>

namespace bulkhead::ipc {

inline constexpr std::array<std::string_view, 2> kSensors = {"gpu", "memory"};
inline constexpr std::array<std::string_view, 5> kSlowedBy = {"heat", "hardware", "power_brake",
                                                              "power_limit", "sync_boost"};
inline constexpr std::size_t kLongestWatchLine = 256;

}  // namespace bulkhead::ipc
