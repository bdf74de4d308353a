// The manual page, equipoise(1), and the completion of bash, zsh and fish, from the parser's commands.
#pragma once

namespace CLI {
class App;
}

namespace equipoise {

// Adds `completion` and `manual`, which describe the commands that the program has so far.
void add_manual_commands(CLI::App& program);

}  // namespace equipoise
