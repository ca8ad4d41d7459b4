// Tables, JSON and progress.
#include "tools/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace tilewise::tools {
namespace {

// Results that must be equal have no bound.
bool has_bound(const reference::Comparison& c) { return c.bound_at_worst > 0; }

double error_of(const reference::Comparison& c) { return c.worst_ratio * c.bound_at_worst; }

}  // namespace

std::string align(const std::vector<Cells>& lines, size_t right_from) {
  std::vector<size_t> widths(lines.front().size(), 0);
  for (const Cells& cells : lines) {
    for (size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string text;
  for (const Cells& cells : lines) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      line += i >= right_from ? fmt::format("{:>{}}  ", cells[i], widths[i])
                              : fmt::format("{:<{}}  ", cells[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (&cells == &lines.front()) text += std::string(line.size(), '-') + "\n";
  }
  return text;
}

Cells comparison_cells(const reference::Comparison& c) {
  if (!has_bound(c)) return {c.ok ? "0" : "wrong", "exact", c.ok ? "0" : "BROKEN"};
  return {fmt::format("{:.2e}", error_of(c)), fmt::format("{:.2e}", c.bound_at_worst),
          fmt::format("{:.3f}{}", c.worst_ratio, c.ok ? "" : " BROKEN")};
}

void add_comparison(nlohmann::json& entry, const reference::Comparison& c) {
  entry["ok"] = c.ok;
  if (has_bound(c)) {
    entry["error"] = error_of(c);
    entry["bound"] = c.bound_at_worst;
    entry["error_to_bound"] = c.worst_ratio;
  }
  if (!c.ok) entry["where"] = c.where;
}

std::string to_table(const std::vector<Row>& rows) {
  std::vector<Cells> lines = {
      {"operator", "records", "shape", "kernel", "error", "bound", "error/bound", "ms", "rate"}};
  for (const Row& row : rows) {
    Cells cells = {row.op, row.records, row.shape, row.kernel};
    for (std::string& cell : comparison_cells(row.comparison)) cells.push_back(std::move(cell));
    cells.push_back(fmt::format("{:.2f}", row.milliseconds));
    cells.push_back(fmt::format("{:.1f} {}", row.rate, row.unit));
    lines.push_back(std::move(cells));
  }
  return align(lines, 4);
}

nlohmann::json to_json(const std::vector<Row>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const Row& row : rows) {
    nlohmann::json entry = {{"operator", row.op},
                            {"records", row.records},
                            {"shape", row.shape},
                            {"kernel", row.kernel},
                            {"rate", row.rate},
                            {"unit", row.unit},
                            {"milliseconds", row.milliseconds}};
    add_comparison(entry, row.comparison);
    list.push_back(std::move(entry));
  }
  return list;
}

JsonFile::JsonFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  unfinished_ = !std::filesystem::exists(path_);
  errno = 0;
  // Appending leaves an earlier report in place until there is a new one.
  if (!std::ofstream(path_, std::ios::app)) {
    unfinished_ = false;
    throw UsageError(
        fmt::format("--json must name a file that can be written, got {} ({})", path_,
                    errno == 0 ? "it cannot be opened" : std::generic_category().message(errno)));
  }
}

JsonFile::~JsonFile() {
  if (unfinished_) std::remove(path_.c_str());
}

void JsonFile::write(const nlohmann::json& report) {
  if (path_.empty()) return;
  std::ofstream file(path_);
  file << report.dump(2) << "\n";
  if (!file.flush()) throw std::runtime_error("cannot write " + path_);
  unfinished_ = false;
}

Progress::Progress(int steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (terminal_) std::fputs("\r\033[K", stderr);
}

void Progress::step(const std::string& what) {
  ++done_;
  if (!terminal_) {
    std::fputs(fmt::format("[{}/{}] {}\n", done_, steps_, what).c_str(), stderr);
    return;
  }
  constexpr int kWidth = 24;
  const int filled = std::min(kWidth, kWidth * done_ / std::max(1, steps_));
  const std::string bar =
      std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(kWidth - filled), '.');
  std::fputs(fmt::format("\r\033[K[{}] {}/{} {}", bar, done_, steps_, what.substr(0, 90)).c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace tilewise::tools
