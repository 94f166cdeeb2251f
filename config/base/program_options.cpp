#include "config/base/program_options.hpp"

#include <utility>

#include <CLI/CLI.hpp>

namespace bulkhead {
namespace {

CLI::Option& of(void* option) {
  return *static_cast<CLI::Option*>(option);
}

}  // namespace

struct ProgramOptions::Impl {
  CLI::App app;
};

ProgramOptions::Option& ProgramOptions::Option::show_default() {
  of(option_).capture_default_str();
  return *this;
}

ProgramOptions::Option& ProgramOptions::Option::required() {
  of(option_).required();
  return *this;
}

ProgramOptions::Option& ProgramOptions::Option::comma_separated() {
  of(option_).delimiter(',');
  return *this;
}

ProgramOptions::Option& ProgramOptions::Option::repeated() {
  of(option_).expected(1)->take_all()->allow_extra_args(false);
  return *this;
}

ProgramOptions::Option& ProgramOptions::Option::not_empty() {
  of(option_).check([](const std::string& value) {
    return value.empty() ? std::string("its value is empty") : std::string();
  });
  return *this;
}

ProgramOptions::Option& ProgramOptions::Option::values(int count) {
  of(option_).expected(count);
  return *this;
}

ProgramOptions::Option& ProgramOptions::Option::within(int least, int most) {
  of(option_).check(CLI::Range(least, most));
  return *this;
}

ProgramOptions::Option& ProgramOptions::Option::within(double least, double most) {
  of(option_).check(CLI::Range(least, most));
  return *this;
}

ProgramOptions::Option& ProgramOptions::Option::one_of(std::vector<std::string> words) {
  of(option_).check(CLI::IsMember(std::move(words)));
  return *this;
}

ProgramOptions::Option& ProgramOptions::Option::excludes(const Option& other) {
  of(option_).excludes(&of(other.option_));
  return *this;
}

ProgramOptions::ProgramOptions(const std::string& description, const std::string& name)
    : impl_(new Impl{CLI::App(description, name)}) {}

ProgramOptions::~ProgramOptions() = default;

ProgramOptions::Option ProgramOptions::add(const std::string& names, std::string& value,
                                           const std::string& help) {
  return Option(impl_->app.add_option(names, value, help));
}

ProgramOptions::Option ProgramOptions::add(const std::string& names, int& value,
                                           const std::string& help) {
  return Option(impl_->app.add_option(names, value, help));
}

ProgramOptions::Option ProgramOptions::add(const std::string& names, std::uint32_t& value,
                                           const std::string& help) {
  return Option(impl_->app.add_option(names, value, help));
}

ProgramOptions::Option ProgramOptions::add(const std::string& names, std::uint64_t& value,
                                           const std::string& help) {
  return Option(impl_->app.add_option(names, value, help));
}

ProgramOptions::Option ProgramOptions::add(const std::string& names, double& value,
                                           const std::string& help) {
  return Option(impl_->app.add_option(names, value, help));
}

ProgramOptions::Option ProgramOptions::add(const std::string& names,
                                           std::vector<std::string>& value,
                                           const std::string& help) {
  return Option(impl_->app.add_option(names, value, help));
}

ProgramOptions::Option ProgramOptions::add(const std::string& names, std::vector<int>& value,
                                           const std::string& help) {
  return Option(impl_->app.add_option(names, value, help));
}

ProgramOptions::Option ProgramOptions::add(const std::string& names,
                                           std::vector<std::uint32_t>& value,
                                           const std::string& help) {
  return Option(impl_->app.add_option(names, value, help));
}

ProgramOptions::Option ProgramOptions::flag(const std::string& names, bool& value,
                                            const std::string& help) {
  return Option(impl_->app.add_flag(names, value, help));
}

void ProgramOptions::version(const std::string& text) {
  impl_->app.set_version_flag("--version", text);
}

void ProgramOptions::footer(const std::string& text) {
  impl_->app.footer(text);
}

std::string ProgramOptions::help() const {
  return impl_->app.help();
}

std::optional<int> ProgramOptions::parse(int argc, char** argv) {
  try {
    impl_->app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return impl_->app.exit(error) == 0 ? 0 : 2;  // CLI11 has a different number for each mistake
  }
  return std::nullopt;
}

Result<bool> ProgramOptions::read(int argc, char** argv) {
  try {
    impl_->app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return Error(ErrorCode::kInvalidArgument, error.what());
    impl_->app.exit(error);  // prints what was requested
    return false;
  }
  return true;
}

}  // namespace bulkhead
