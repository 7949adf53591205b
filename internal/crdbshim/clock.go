package crdbshim

import "time"

// patience bounds each thing that happens without the client: dialling the server, and the server's
// end of a session that was cut.
const patience = 10 * time.Second

// soon is the deadline for something that normally takes no time.
func soon() time.Time { return time.Now().Add(patience) }
