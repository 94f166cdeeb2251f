// `bulkhead top` shows the live state of a daemon on a terminal, with keys to sort, drain and
// restart.
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "tools/cli/commands.hpp"
#include "tools/cli/held_stops.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/top_view.hpp"

namespace bulkhead::cli {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t kOrders = std::size(kTopOrders);
constexpr const char* kKeys = "up/down select   s sort   d drain   r restart   q quit";

Look look_at(HttpClient& client) {
  Look look;
  const auto ask = [&](const char* path) -> std::string {
    const Result<HttpResponse> response = client.get(path);
    if (!response.ok()) {
      look.error = response.error().message();
    } else if (response->status != 200) {
      look.error = api_error(*response).message();
    } else {
      return response->body;
    }
    return "";
  };
  look.workers = json::parse(ask("/v1/workers"), nullptr, false);
  if (look.error.empty() && !look.workers.is_array())
    look.error = "the answer of " + client.url() + "/v1/workers is not a list of workers";
  if (look.error.empty()) look.metrics = ask("/metrics");
  look.seconds = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  return look;
}

// The terminal while `bulkhead top` runs: this class reads keys as they are pressed and draws on
// the alternate screen. Its destructor restores the terminal.
class Screen {
 public:
  Screen() { enter(); }
  ~Screen() { leave(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void enter() {
    ::tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    put("\033[?1049h\033[?25l");
  }
  void leave() const {
    put("\033[?25h\033[?1049l");
    ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }

  static void size(TopLayout& layout) {
    winsize window{};
    layout.width = layout.height = 0;
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0) return;
    layout.width = window.ws_col;
    layout.height = window.ws_row;
  }
  // Overwrites the screen line by line, so that nothing flickers. The last line has no line end, so
  // nothing scrolls.
  static bool show(const std::string& text) {
    std::string out = "\033[H";
    for (const char c : text) {
      if (c == '\n') out += "\033[K";
      out += c;
    }
    if (out.ends_with('\n')) out.pop_back();
    return put(out + "\033[J");
  }

 private:
  termios before_{};
};

enum class Key { kNone, kUp, kDown, kSort, kDrain, kRestart, kYes, kOther, kQuit };

// The keys that the user presses. While the daemon is slow to answer, several come at once.
class Keys {
 public:
  // Returns the next key within `patience`; kNone if the user pressed none, and kQuit also if the
  // terminal is gone. `mask`: the mask of signals while it waits.
  Key next(std::chrono::milliseconds patience, const sigset_t* mask) {
    if (pressed_.empty()) {
      pollfd readable{STDIN_FILENO, POLLIN, 0};
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience);
      const timespec time{seconds.count(), std::chrono::nanoseconds(patience - seconds).count()};
      if (::ppoll(&readable, 1, &time, mask) <= 0) return Key::kNone;
      char bytes[256];
      const ssize_t got = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (got <= 0) return Key::kQuit;
      pressed_.assign(bytes, static_cast<std::size_t>(got));
    }
    for (const auto& [bytes, key] : kKnown) {
      if (!pressed_.starts_with(bytes)) continue;
      pressed_.erase(0, bytes.size());
      return key;
    }
    pressed_.erase(0, 1);
    return Key::kOther;
  }
  // Forgets keys that were pressed before the user could see a question; they are no answer to it.
  void forget() { pressed_.clear(); }

 private:
  static constexpr std::pair<std::string_view, Key> kKnown[] = {
      {"\033[A", Key::kUp},   {"\033OA", Key::kUp}, {"k", Key::kUp},   {"\033[B", Key::kDown},
      {"\033OB", Key::kDown}, {"j", Key::kDown},    {"s", Key::kSort}, {"d", Key::kDrain},
      {"r", Key::kRestart},   {"y", Key::kYes},     {"q", Key::kQuit}};

  std::string pressed_;
};

class Top {
 public:
  Top(const TopOptions& options, HttpClient client, TopOrder order)
      : options_(options), client_(std::move(client)), order_(order) {
    layout_.colours = colours_wanted();
  }

  int run() {
    const HeldStops stops({SIGTSTP});
    Screen screen;
    Look before = look_at(client_), now = before;
    Clock::time_point next = Clock::now();
    while (!interrupted) {
      const Clock::time_point time = Clock::now();
      if (time >= next) {
        before = std::exchange(now, look_at(client_));
        // If the daemon did not answer, the next question waits an interval, so that the user's keys are read first.
        next = (now.error.empty() ? time : Clock::now()) + interval();
        frame_ = frame_of(before, now);
      }
      if (!show()) return 0;
      const auto patience = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
      const Key key = keys_.next(std::max(patience, std::chrono::milliseconds(1)), stops.before());
      if (HeldStops::arrived()) {
        screen.leave();
        stops.obey();
        screen.enter();
      }
      if (key == Key::kQuit) return 0;
      if (key != Key::kNone) press(key);
    }
    return 0;
  }

 private:
  std::chrono::milliseconds interval() const {
    return std::chrono::milliseconds(static_cast<int>(options_.interval * 1000));
  }

  bool show() {
    sort_workers(frame_, order_);
    const bool known = std::ranges::count(frame_.workers, layout_.selected, &TopWorker::name) > 0;
    if (!known && !frame_.workers.empty()) layout_.selected = frame_.workers.front().name;
    const std::string order = kTopOrders[static_cast<std::size_t>(order_)];
    layout_.foot = !asks_.empty()   ? asks_ + " " + layout_.selected + "? y/n"
                   : !told_.empty() ? told_
                                    : std::string(kKeys) + "   (sorted by " + order + ")";
    Screen::size(layout_);
    return Screen::show(to_text(frame_, layout_));
  }

  void press(Key key) {
    told_.clear();
    if (const std::string action = std::exchange(asks_, ""); !action.empty()) {
      if (key == Key::kYes) act(action);
      return;
    }
    switch (key) {
      case Key::kUp:
        return move(-1);
      case Key::kDown:
        return move(1);
      case Key::kSort:
        order_ = static_cast<TopOrder>((static_cast<std::size_t>(order_) + 1) % kOrders);
        return;
      case Key::kDrain:
        return ask("drain");
      case Key::kRestart:
        return ask("restart");
      case Key::kNone:
      case Key::kYes:
      case Key::kOther:
      case Key::kQuit:
        return;
    }
  }

  void ask(const char* action) {
    asks_ = action;
    keys_.forget();
  }

  void move(int by) {
    const auto at = std::ranges::find(frame_.workers, layout_.selected, &TopWorker::name);
    if (at == frame_.workers.end()) return;
    if (by < 0 ? at == frame_.workers.begin() : std::next(at) == frame_.workers.end()) return;
    layout_.selected = std::next(at, by)->name;
  }

  void act(const std::string& action) {
    const Result<json> worker = post_order(
        client_, "/v1/workers/" + url_encoded(layout_.selected) + "/" + action, json::object());
    told_ = cell(worker.ok() ? layout_.selected +
                                   (action == "drain" ? " is draining" : " is being restarted")
                             : worker.error().message());
  }

  const TopOptions& options_;
  HttpClient client_;
  TopOrder order_;
  TopLayout layout_;
  TopFrame frame_;
  Keys keys_;
  std::string asks_, told_;  // the question to be confirmed, and the result of the last action
};

}  // namespace

int run_top(const TopOptions& options) {
  Result<HttpClient> client = make_client(options.connection, kTopTimeout);
  if (!client.ok()) return fail(client.error());
  const auto known = std::ranges::find(kTopOrders, options.sort,
                                       [](const char* name) { return std::string(name); });
  const auto order = static_cast<TopOrder>(std::distance(std::begin(kTopOrders), known));
  watch_interrupts({SIGINT, SIGTERM});
  const bool once = options.once || (!options.json &&
                                     (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0));
  if (!once && !options.json) return Top(options, *client, order).run();
  Look before = look_at(*client);
  while (!interrupted) {
    if (!before.error.empty()) return fail(Error(ErrorCode::kUnavailable, before.error));
    for (int i = 0; i < static_cast<int>(options.interval * 20) && !interrupted; ++i)
      ::usleep(50'000);
    if (interrupted) break;
    Look now = look_at(*client);
    if (!now.error.empty()) return fail(Error(ErrorCode::kUnavailable, now.error));
    TopFrame frame = frame_of(before, now);
    sort_workers(frame, order);
    const std::string text = options.json ? json_text(to_json(frame)) + "\n" : to_text(frame, {});
    if (!put(text) || once) return 0;
    before = std::move(now);
  }
  return 130;
}

}  // namespace bulkhead::cli
