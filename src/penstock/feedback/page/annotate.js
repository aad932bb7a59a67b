// The annotation page.

import { Desk } from "./desk.js";

Desk.open({ request: {} });
