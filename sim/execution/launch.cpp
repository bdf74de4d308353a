#include "sim/execution/launch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "policies/base/error.h"

namespace equipoise::execution {

bool under_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

int run_ranks(int ranks, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"mpirun", "-np", std::to_string(ranks), "--allow-run-as-root",
                                    "--mca",  "btl", "vader,self"};
  if (ranks > static_cast<int>(std::thread::hardware_concurrency()))
    words.insert(words.end(), {"--oversubscribe", "--mca", "mpi_yield_when_idle", "1"});
  else
    words.insert(words.end(), {"--bind-to", "core"});
  words.emplace_back("/proc/self/exe");
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  if (length > 0) words.back().assign(self, static_cast<std::size_t>(length));
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    execvp(raw[0], raw.data());
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

}  // namespace equipoise::execution
