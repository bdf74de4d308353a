// What Open MPI's mpirun says on stderr beside the ranks: banners between lines of dashes, and log lines of
// its own. A user should see what the ranks say, and one line on why they ended.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace equipoise::execution {

// A rank that mpirun saw end by a signal.
struct Killed {
  int rank = 0;
  int signal = 0;
};

class LauncherNoise {
 public:
  // Whether a user should see this line of mpirun's stderr (without its end).
  bool keeps(std::string_view line);

  // Learnt on the way.
  [[nodiscard]] const std::optional<Killed>& killed() const { return killed_; }
  // A rank ended with a status of its own, and has said why.
  [[nodiscard]] bool rank_status() const { return rank_status_; }
  // All banners, for the case that mpirun itself failed.
  [[nodiscard]] const std::string& banners() const { return banners_; }

 private:
  void learn(std::string_view line);
  bool in_banner_ = false;
  bool rank_status_ = false;
  std::optional<Killed> killed_;
  std::string banners_;
};

// "signal 9 (Killed): out of memory?"
std::string text_of_signal(int signal);

}  // namespace equipoise::execution
