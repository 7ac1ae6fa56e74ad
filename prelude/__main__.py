import sys

from prelude.tools.cli import main

sys.exit(main())
