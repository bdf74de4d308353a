#include "sim/cli/grammar.h"

int main(int argc, char** argv) {
  return equipoise::run_program(argc, argv);
}
