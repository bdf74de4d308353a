#include "sim/execution/children.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

namespace equipoise::execution {
namespace {

int parent_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return -1;
  std::istringstream rest(line.substr(name_end + 1));
  char state = ' ';
  int parent = -1;
  rest >> state >> parent;
  return parent;
}

}  // namespace

std::vector<int> children_of(int pid) {
  std::vector<int> children;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator("/proc", error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    int child = 0;
    const auto [end, fault] = std::from_chars(name.data(), name.data() + name.size(), child);
    if (fault != std::errc() || end != name.data() + name.size()) continue;
    if (parent_of(name) == pid) children.push_back(child);
  }
  return children;
}

void kill_children() {
  constexpr int kTries = 300;
  for (int i = 0; i < kTries; ++i) {
    pid_t reaped = 0;
    do reaped = waitpid(-1, nullptr, WNOHANG);
    while (reaped > 0);
    if (reaped < 0 && errno == ECHILD) return;
    for (const int child : children_of(getpid())) kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string rank_of_process(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
  for (std::string variable; std::getline(file, variable, '\0');)
    for (const std::string name : {"OMPI_COMM_WORLD_RANK=", "PMIX_RANK=", "PMI_RANK="})
      if (variable.rfind(name, 0) == 0) return variable.substr(name.size());
  return "?";
}

}  // namespace equipoise::execution
