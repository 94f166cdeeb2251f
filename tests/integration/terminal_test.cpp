// `bulkhead chat` as somebody uses it: at a terminal, and from a pipe.

#include "tests/integration/terminal.hpp"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/integration/serving.hpp"
#include "tests/support/canned_server.hpp"

namespace bulkhead::test {
namespace {

std::vector<std::string> chat_with(const Serving& serving) {
  return {"chat", "--url", url_of(serving), "--seed", "4", "--max-tokens", "3"};
}

TEST(Terminal, ColoursAreForTerminalsAndNoColorLeavesThemOut) {
  const Serving serving = serve();
  const Home home;
  const std::string green = "\x1b[32mready";
  const std::vector<std::string> top = {"top", "--url", url_of(serving), "--interval", "0.1"};
  {
    Terminal terminal(top, home.path);
    ASSERT_TRUE(terminal.shows("WORKER")) << terminal.shown();
    // The selected worker is marked, and not coloured; there is only one.
    EXPECT_TRUE(terminal.shows("\x1b[7m")) << terminal.shown();
    terminal.type("q");
    EXPECT_EQ(terminal.exit_code(), 0);
  }
  Serving two = serve({"models.0.path=builtin", "models.0.workers=2"});
  const std::vector<std::string> top_of_two = {"top", "--url", url_of(two), "--interval", "0.1"};
  {
    Terminal terminal(top_of_two, home.path, {{"NO_COLOR", ""}});
    EXPECT_TRUE(terminal.shows(green)) << terminal.shown();
    terminal.type("q");
    EXPECT_EQ(terminal.exit_code(), 0);
  }
  Terminal terminal(top_of_two, home.path, {{"NO_COLOR", "1"}});
  ASSERT_TRUE(terminal.shows("builtin-1")) << terminal.shown();
  ASSERT_TRUE(terminal.shows("builtin-1")) << terminal.shown();
  EXPECT_EQ(terminal.shown().find(green), std::string::npos) << terminal.shown();
  terminal.type("q");
  EXPECT_EQ(terminal.exit_code(), 0);
}

// While the terminal edits lines, it turns a Ctrl-D into a zero byte, which does not end the chat.
TEST(Terminal, KeysAreTheChatsOnceThePromptShows) {
  const Serving serving = serve();
  const Home home;
  for (int chats = 0; chats < 10; ++chats) {
    Terminal terminal(chat_with(serving), home.path);
    for (int prompts = 0; prompts < 5; ++prompts) {
      ASSERT_TRUE(terminal.shows("> ")) << terminal.shown();
      ASSERT_FALSE(terminal.edits_lines()) << "at prompt " << prompts;
      terminal.type("\r");
    }
    ASSERT_TRUE(terminal.shows("> "));
    terminal.type("\x04");
    EXPECT_EQ(terminal.exit_code(), 0);
  }
}

// While the shell has the terminal, it must be as the shell left it.
TEST(Terminal, CtrlZGivesTheTerminalToTheShellAndTakesItBack) {
  const Serving serving = serve();
  const Home home;
  std::string chat = BULKHEAD_TOOL;
  for (const std::string& word : chat_with(serving))
    chat += " " + word;
  Terminal terminal("set -m; " + chat + "; echo in the shell; read line; fg", home.path);
  ASSERT_TRUE(terminal.shows("> ")) << terminal.shown();
  terminal.type("half a");
  ASSERT_TRUE(terminal.shows("half a")) << terminal.shown();
  terminal.type("\x1a");
  ASSERT_TRUE(terminal.shows("in the shell")) << terminal.shown();
  EXPECT_TRUE(terminal.edits_lines());
  terminal.type("\n");
  ASSERT_TRUE(terminal.shows("> half a")) << terminal.shown();
  EXPECT_FALSE(terminal.edits_lines());
  terminal.type(" line\r");
  ASSERT_TRUE(terminal.shows(expected_text(4, 3))) << terminal.shown();
  ASSERT_TRUE(terminal.shows("> "));
  terminal.type("\x04");
  EXPECT_EQ(terminal.exit_code(), 0);
  const std::string prompt = "prompt_tokens=" + std::to_string("user: half a line\n"s.size()) + " ";
  EXPECT_NE(serving.daemon->log().find(prompt), std::string::npos) << serving.daemon->log();
}

// `timeout 60 bulkhead chat`, for example, must not leave a terminal that shows nothing of what is typed.
TEST(Terminal, IsGivenBackWhenTheChatIsTerminated) {
  const Serving serving = serve();
  const Home home;
  Terminal terminal(chat_with(serving), home.path);
  ASSERT_TRUE(terminal.shows("> ")) << terminal.shown();
  EXPECT_FALSE(terminal.edits_lines());
  terminal.signal(SIGTERM);
  EXPECT_TRUE(terminal.shows("\x1b[?2004l")) << terminal.shown();
  EXPECT_EQ(terminal.exit_code(), 1000 + SIGTERM);
  EXPECT_TRUE(terminal.edits_lines());
}

TEST(Terminal, WhatIsPastedAtOnceIsOneMessage) {
  const Serving serving = serve();
  const Home home;
  Terminal terminal(chat_with(serving), home.path);
  ASSERT_TRUE(terminal.shows("> ")) << terminal.shown();
  terminal.type("\x1b[200~one\ntwo\nthree\x1b[201~");
  ASSERT_TRUE(terminal.shows("three")) << terminal.shown();
  terminal.type("\r");
  ASSERT_TRUE(terminal.shows(expected_text(4, 3))) << terminal.shown();
  ASSERT_TRUE(terminal.shows("> "));
  const std::string prompt = "user: one\ntwo\nthree\n";
  const std::string line = "prompt_tokens=" + std::to_string(prompt.size()) + " ";
  EXPECT_TRUE(Serving::eventually([&] {
    return serving.daemon->log().find(line) != std::string::npos;
  })) << serving.daemon->log();
  terminal.type("\x04");
  EXPECT_EQ(terminal.exit_code(), 0);
}

TEST(Terminal, LinesAreEditedAndComeBackTheNextTime) {
  const Serving serving = serve();
  const Home home;
  for (const bool again : {false, true}) {
    Terminal terminal(chat_with(serving), home.path);
    ASSERT_TRUE(terminal.shows("> ")) << terminal.shown();
    // The beginning of the line is corrected; the next time, the corrected line is in the history, before "/quit".
    terminal.type(again ? "\x1b[A\x1b[A" : "ello\x01h");
    ASSERT_TRUE(terminal.shows(again ? "hello" : "h")) << terminal.shown();
    terminal.type("\r");
    ASSERT_TRUE(terminal.shows(expected_text(4, 3))) << terminal.shown();
    ASSERT_TRUE(terminal.shows("> "));
    terminal.type("half a line\x03");
    ASSERT_TRUE(terminal.shows("(Ctrl-D or /quit ends)")) << terminal.shown();
    ASSERT_TRUE(terminal.shows("> "));
    terminal.type("/quit\r");
    EXPECT_EQ(terminal.exit_code(), 0);
  }
  const std::string line = "prompt_tokens=" + std::to_string("user: hello\n"s.size()) + " ";
  EXPECT_TRUE(Serving::eventually([&] {
    const std::string log = serving.daemon->log();
    const std::size_t first = log.find(line);
    return first != std::string::npos && log.find(line, first + 1) != std::string::npos;
  })) << serving.daemon->log();
  const auto file = std::filesystem::path(home.path) / ".local/state/bulkhead/chat_history";
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

// A daemon that is ready, and one answer whose model reasons and writes what clears a screen.
CannedServer reasoning_server() {
  const std::string parts[] = {R"({"reasoning_content": "Hm."})",
                               R"({"content": "Yes\u001b[2J.\n"})"};
  std::string events;
  for (const std::string& delta : parts)
    events += "data: {\"choices\": [{\"delta\": " + delta + "}]}\n\n";
  events += "data: [DONE]\n\n";
  return CannedServer(
      {{whole_answer("200 OK", R"({"status": "ok"})")}, {whole_answer("200 OK", events)}});
}

TEST(Chat, ShowsReasoningAtATerminalAndNothingThatControlsIt) {
  const Home home;
  const std::map<std::string, std::string> environments[] = {
      {{"NO_COLOR", ""}}, {{"NO_COLOR", "1"}}, {{"TERM", "dumb"}}};
  for (const auto& environment : environments) {
    const bool colours = environment == environments[0];
    const CannedServer server = reasoning_server();
    Terminal terminal({"chat", "--url", server.url()}, home.path, environment);
    ASSERT_TRUE(terminal.shows("> ")) << terminal.shown();
    terminal.type("hello\r");
    const std::string wanted = colours ? "\x1b[2mHm.\x1b[0m\r\n\r\nYes\\x1b[2J.\r\n"
                                       : "(reasoning)\r\nHm.\r\n(answer)\r\nYes\\x1b[2J.\r\n";
    EXPECT_TRUE(terminal.shows(wanted)) << terminal.shown();
    ASSERT_TRUE(terminal.shows("> ")) << terminal.shown();
    terminal.type("/quit\r");
    EXPECT_EQ(terminal.exit_code(), 0);
  }
}

TEST(Terminal, CtrlCEndsTheWaitForAModel) {
  const Home home;
  const std::string loading = whole_answer(
      "503 Service Unavailable",
      R"({"status": "loading", "workers": [{"state": "loading", "stage": "warm-up"}]})");
  const std::vector<std::vector<std::string>> answers(1000, {loading});
  for (const std::string command : {"complete", "chat"}) {
    const CannedServer server(answers);
    std::vector<std::string> words = {command, "--url", server.url()};
    if (command == "complete") words.emplace_back("Once");
    Terminal terminal(words, home.path);
    ASSERT_TRUE(terminal.shows("warm-up ...")) << terminal.shown();
    terminal.type("\x03");
    EXPECT_EQ(terminal.exit_code(), 130) << command;
  }
}

TEST(Chat, WritesTheAnswerAloneIntoAPipe) {
  const Home home;
  const CannedServer server = reasoning_server();
  const std::string command = "printf 'hello\\n' | " BULKHEAD_TOOL " chat --url " + server.url() +
                              " > " + home.path + "/out";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 0);
  std::ifstream file(home.path + "/out");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "Yes\x1b[2J.\n\n");
}

TEST(Chat, GoesOnWhenTheContextIsFull) {
  const Serving serving = serve();
  const Home home;
  std::ofstream(home.path + "/in") << "fits@60 first\nfits@60 second\n"
                                   << "fits@60 is itself longer than what fits into this context, "
                                      "by a little\n";
  const std::string command = BULKHEAD_TOOL " chat --url "s + url_of(serving) +
                              " --seed 4 --max-tokens 3 < " + home.path + "/in > " + home.path +
                              "/out 2> " + home.path + "/err";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  const auto content = [&home](const char* name) {
    std::ifstream file(home.path + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(content("/out"), expected_text(4, 3) + "\n" + expected_text(4, 3) + "\n");
  EXPECT_NE(content("/err").find("oldest turns are left out"), std::string::npos)
      << content("/err");
  EXPECT_NE(content("/err").find("too many tokens"), std::string::npos) << content("/err");
}

}  // namespace
}  // namespace bulkhead::test
