// Draws a timed schedule as text: one line for each stage, with time from left to right.
#pragma once

#include <string>

#include "sim/schedule/timed_schedule.h"

namespace equipoise {

struct DrawingStyle {
  int columns = 100;  // width of the terminal; at least 40 are used
  bool color = false;
};

// Example (two stages, 1f1b, lengths 1,1): a letter and a number from 1 name op and micro-batch, with a
// letter for the virtual stage where there are several; the fill shows how long it runs, dots are idle.
//   stage 0  F1--F2--........B1======....B2======
//   stage 1  ....F1--B1======F2--B2======........
// The two ops of a pair share its time, by their lengths where those are known, with & between them:
//   stage 1  ....F1--F2--&B1=====
// Where an op is too short for its name only its letter is drawn; what is shorter than a column is not drawn.
std::string draw_schedule(const TimedSchedule&, int virtual_stages, DrawingStyle);

}  // namespace equipoise
