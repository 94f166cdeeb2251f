#include "worker/sandbox/call_filter.hpp"

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

namespace bulkhead::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "where an argument's lower half lies");

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "the system call filter knows no architecture but x86-64 and aarch64: add its AUDIT_ARCH"
#endif
constexpr std::uint32_t kX32 = 0x40000000;

constexpr std::uint32_t lower_half(unsigned argument) {
  return offsetof(seccomp_data, args) + 8 * argument;
}

class Program {
 public:
  Program(const CallContext& context, Refusal refusal)
      : context_(context),
        refused_(refusal == Refusal::kNotify ? SECCOMP_RET_USER_NOTIF : failing(EPERM)) {
    for (const AllowedCall& row : allowed_calls()) {
      if (row.number >= 0) calls_[static_cast<std::uint32_t>(row.number)].rows.push_back(&row);
    }
    for (const int call : context.also)
      calls_[static_cast<std::uint32_t>(call)].whole = SECCOMP_RET_ALLOW;
    for (const int call : absent_calls()) {
      if (call >= 0) calls_[static_cast<std::uint32_t>(call)].whole = failing(ENOSYS);
    }
    if (refusal == Refusal::kNotify) {
      for (const int call : context.always_told)
        calls_[static_cast<std::uint32_t>(call)].whole = SECCOMP_RET_USER_NOTIF;
    }
  }

  std::vector<sock_filter> build() {
    load(offsetof(seccomp_data, arch));
    jump(BPF_JEQ, kArchitecture, 1, 0);
    give(failing(EPERM));
    load(offsetof(seccomp_data, nr));
    jump(BPF_JGE, kX32, 0, 1);
    give(failing(EPERM));
    jump(BPF_JGT, kNewestKnownCall, 0, 1);
    give(failing(ENOSYS));
    const std::vector<Entry> entries(calls_.begin(), calls_.end());
    search(entries);
    return std::move(code_);
  }

 private:
  struct Call {
    std::uint32_t whole = 0;  // the answer that does not depend on the arguments; 0: the rows decide
    std::vector<const AllowedCall*> rows;
  };
  using Entry = std::pair<std::uint32_t, Call>;

  static constexpr std::uint32_t failing(int error) {
    return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error);
  }

  void load(std::uint32_t offset) { code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)); }
  void give(std::uint32_t answer) { code_.push_back(BPF_STMT(BPF_RET | BPF_K, answer)); }
  void jump(unsigned test, std::uint32_t with, std::uint8_t if_so, std::uint8_t if_not) {
    code_.push_back(BPF_JUMP(BPF_JMP | test | BPF_K, with, if_so, if_not));
  }

  // When this runs, the call's number is in the accumulator.
  void search(std::span<const Entry> entries) {
    if (entries.size() == 1) {
      jump(BPF_JEQ, entries[0].first, 1, 0);
      give(refused_);
      return answer(entries[0].second);
    }
    const std::size_t half = entries.size() / 2;
    jump(BPF_JGE, entries[half].first, 0, 1);
    const std::size_t far = code_.size();
    code_.push_back(BPF_STMT(BPF_JMP | BPF_JA, 0));
    search(entries.first(half));
    code_[far].k = static_cast<std::uint32_t>(code_.size() - far - 1);
    search(entries.subspan(half));
  }

  void answer(const Call& call) {
    if (call.whole != 0) return give(call.whole);
    for (const AllowedCall* row : call.rows) {
      std::vector<std::size_t> leave;  // jumps that lead to the next row if the test fails
      for (const ArgumentCheck& check : row->checks)
        test(check, leave);
      give(SECCOMP_RET_ALLOW);
      for (const std::size_t at : leave) {
        const auto distance = static_cast<std::uint8_t>(code_.size() - at - 1);
        (code_[at].jf == kLeave ? code_[at].jf : code_[at].jt) = distance;
      }
      if (leave.empty()) return;  // no call gets past this row
    }
    give(refused_);
  }

  void test(const ArgumentCheck& check, std::vector<std::size_t>& leave) {
    switch (check.must) {
      case Must::kNothing:
        return;
      case Must::kBeZero:
        for (const std::uint32_t half : {0U, 4U}) {
          load(lower_half(check.argument) + half);
          leave.push_back(code_.size());
          jump(BPF_JEQ, 0, 0, kLeave);
        }
        return;
      case Must::kEqual:
      case Must::kDiffer:
        load(lower_half(check.argument));
        if (check.mask != 0xffffffff)
          code_.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, check.mask));
        leave.push_back(code_.size());
        if (check.must == Must::kEqual) {
          jump(BPF_JEQ, value_of(check), 0, kLeave);
        } else {
          jump(BPF_JEQ, value_of(check), kLeave, 0);
        }
        return;
    }
  }

  std::uint32_t value_of(const ArgumentCheck& check) const {
    switch (check.known) {
      case Known::kNumber:
        return check.value & check.mask;
      case Known::kProcess:
        return static_cast<std::uint32_t>(context_.process);
      case Known::kRegion:
        return static_cast<std::uint32_t>(context_.region);
    }
    std::abort();
  }

  static constexpr std::uint8_t kLeave = 0xff;  // replaced later: no row is this long

  const CallContext& context_;
  const std::uint32_t refused_;
  std::map<std::uint32_t, Call> calls_;
  std::vector<sock_filter> code_;
};

}  // namespace

std::vector<sock_filter> build_call_filter(const CallContext& context, Refusal refusal) {
  return Program(context, refusal).build();
}

// Interprets only the instructions that Program makes.
std::uint32_t judge(std::span<const sock_filter> program, const seccomp_data& call) {
  std::uint32_t value = 0;
  for (std::size_t at = 0; at < program.size(); ++at) {
    const sock_filter& each = program[at];
    const auto skip = [&at, &each](bool yes) { at += yes ? each.jt : each.jf; };
    switch (each.code) {
      case BPF_LD | BPF_W | BPF_ABS:
        std::memcpy(&value, reinterpret_cast<const char*>(&call) + each.k, sizeof value);
        continue;
      case BPF_ALU | BPF_AND | BPF_K:
        value &= each.k;
        continue;
      case BPF_JMP | BPF_JA:
        at += each.k;
        continue;
      case BPF_JMP | BPF_JEQ | BPF_K:
        skip(value == each.k);
        continue;
      case BPF_JMP | BPF_JGE | BPF_K:
        skip(value >= each.k);
        continue;
      case BPF_JMP | BPF_JGT | BPF_K:
        skip(value > each.k);
        continue;
      case BPF_RET | BPF_K:
        return each.k;
    }
    break;
  }
  return SECCOMP_RET_KILL_PROCESS;
}

Result<UniqueFd> load_call_filter(std::span<const sock_filter> program, Refusal refusal) {
  const sock_fprog loaded{static_cast<unsigned short>(program.size()),
                          const_cast<sock_filter*>(program.data())};  // the kernel only reads this
  const unsigned flags = refusal == Refusal::kNotify ? SECCOMP_FILTER_FLAG_NEW_LISTENER : 0;
  const long listener = ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &loaded);
  if (listener < 0) {
    const bool lacks = refusal == Refusal::kNotify && (errno == EINVAL || errno == EBUSY);
    return errno_error(lacks ? ErrorCode::kUnsupported : ErrorCode::kInternal,
                       "loading the system call filter", errno);
  }
  if (refusal != Refusal::kNotify) return UniqueFd();
  return UniqueFd(static_cast<int>(listener));
}

std::string call_name(int number) {
  char* const known = ::seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, number);
  std::string name = known != nullptr ? known : "call " + std::to_string(number);
  std::free(known);
  return name;
}

Result<std::vector<int>> calls_by_name(const std::string& names) {
  std::vector<int> calls;
  constexpr std::string_view kBetween = ", ";
  for (std::size_t at = names.find_first_not_of(kBetween); at != std::string::npos;) {
    const std::size_t end = std::min(names.find_first_of(kBetween, at), names.size());
    const std::string name = names.substr(at, end - at);
    const int call = ::seccomp_syscall_resolve_name(name.c_str());
    if (call == __NR_SCMP_ERROR)
      return Error(ErrorCode::kInvalidArgument,
                   "isolation.sandbox_calls: \"" + name +
                       "\" is not a system call that this build knows (man 2 syscalls)");
    if (call >= 0) calls.push_back(call);
    at = names.find_first_not_of(kBetween, end);
  }
  return calls;
}

}  // namespace bulkhead::worker
