package testdb

// parentDeathSignal says that servers die with a killed test binary, without a successor.
const parentDeathSignal = true
