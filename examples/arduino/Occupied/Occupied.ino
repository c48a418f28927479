// Says once a second whether the room is occupied, by a kernel SVM of two readings: a light sensor at A0, a microphone at A1.
#include "model.h"

void setup() {
  Serial.begin(115200);
}

void loop() {
  model_row row;  // of numbers as they were learned: scaling is inside
  row.at.light = (float)analogRead(A0);
  row.at.sound = (float)analogRead(A1);
  Serial.println(model_labels[model_predict(row.x)]);
  delay(1000);
}
